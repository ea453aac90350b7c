"""Downloads drawn on the terminal, for every command that may fetch a model."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class TerminalProgress:
    """Draws downloads on stderr: bars on a terminal, a line each elsewhere. A context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
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

    def begin(self, what: str, total: int | None, done: int = 0) -> None:
        """Draw a bar for ``what``, or set the one it has to ``done``."""
        with self._lock:
            if what in self._tasks:
                self._bars.update(self._tasks[what], total=total, completed=done)
            else:
                self._tasks[what] = self._bars.add_task(what, total=total, completed=done)
                if self._bars.disable:
                    self.note(f"fetching {what}")
            self._current = self._tasks[what]

    def advance(self, count: int) -> None:
        """Move the current bar on by ``count`` bytes."""
        if self._current is not None:
            self._bars.advance(self._current, count)

    def note(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
