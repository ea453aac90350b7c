"""Long work drawn on the terminal: what a command fetches, and what a lane compiles."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from caldrix.weights.progress import Unit


class _ByUnit(ProgressColumn):
    """Draws each bar's cell with the column that suits what the bar counts, or leaves it empty."""

    def __init__(self, columns: Mapping[Unit, ProgressColumn]) -> None:
        super().__init__()
        self._columns = columns

    def render(self, task: Task) -> Text:
        column = self._columns.get(task.fields["unit"])
        drawn = Text() if column is None else column.render(task)
        assert isinstance(drawn, Text)
        return drawn


class TerminalProgress:
    """Draws on stderr: bars on a terminal, a line each elsewhere. A context manager.

    With ``transient`` the bars are gone at its end.
    """

    def __init__(self, *, transient: bool = False) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _ByUnit({"bytes": DownloadColumn(), "pieces": MofNCompleteColumn()}),
            _ByUnit({"bytes": TransferSpeedColumn()}),
            TimeRemainingColumn(),
            console=self._console,
            transient=transient,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._current: TaskID | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        """Draw a bar for ``what``, or set the one it has to ``done``."""
        with self._lock:
            if what in self._tasks:
                self._bars.update(self._tasks[what], total=total, completed=done)
            else:
                self._tasks[what] = self._bars.add_task(
                    what, total=total, completed=done, unit=unit
                )
                if self._bars.disable:
                    self.note(f"fetching {what}" if unit == "bytes" else what)
            self._current = self._tasks[what]

    def advance(self, count: int) -> None:
        """Move the current bar on by ``count`` units."""
        if self._current is not None:
            self._bars.advance(self._current, count)

    def note(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
