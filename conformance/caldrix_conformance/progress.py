"""How far a run has come, on stderr: a bar on a terminal, otherwise a line every tenth of it."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINES = 10


class ProgressBar:
    """A pytest plugin that tells of the cases done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._on_a_terminal = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self._on_a_terminal,
        )
        self._task = self._bar.add_task("cases")
        self._total = self._done = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin, knowing how many cases there are."""
        self._total = len(session.items)
        self._bar.update(self._task, total=self._total)
        self._bar.start()

    def pytest_runtest_logfinish(self) -> None:
        """Count a case that is done."""
        self._done += 1
        self._bar.advance(self._task)
        tenth = self._done * _LINES // self._total
        if not self._on_a_terminal and tenth > (self._done - 1) * _LINES // self._total:
            self._console.print(f"{self._done} of {self._total} cases done", highlight=False)

    def pytest_unconfigure(self) -> None:
        """End, however the run did."""
        self._bar.stop()
