"""How long work tells what it is doing: downloads, and what a lane compiles.

Nothing below the command line prints; it draws.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from attrs import frozen

Unit: TypeAlias = Literal["bytes", "pieces"]
"""What is counted: the bytes of something fetched, or the pieces of some other work."""


class Progress(Protocol):
    """Told about one thing after the other; may be called from several threads."""

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        """A new thing of ``total`` units (None: unknown), of which ``done`` are already there.

        ``what`` is a thing's name where bytes are counted, and says what is done where pieces
        are: ``compiling kernels``.
        """
        ...

    def advance(self, count: int) -> None:
        """``count`` more units of it are there."""
        ...

    def note(self, text: str) -> None:
        """Something a person should know: a wait, a retry, a fallback."""
        ...


@frozen
class Silent:
    """A Progress that nobody watches."""

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        """Ignore it."""

    def advance(self, count: int) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


SILENT = Silent()
