"""How a download tells what it is doing. Nothing in this layer prints: the command line draws."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen


class Progress(Protocol):
    """Told about one thing after the other; may be called from several threads."""

    def begin(self, what: str, total: int | None, done: int = 0) -> None:
        """A new thing of ``total`` bytes (None: unknown), of which ``done`` are already here."""
        ...

    def advance(self, count: int) -> None:
        """``count`` more bytes of it are here."""
        ...

    def note(self, text: str) -> None:
        """Something a person should know: a wait, a retry, a fallback."""
        ...


@frozen
class Silent:
    """A Progress that nobody watches."""

    def begin(self, what: str, total: int | None, done: int = 0) -> None:
        """Ignore it."""

    def advance(self, count: int) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


SILENT = Silent()
