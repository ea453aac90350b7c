"""Someone who is told of long work, and remembers it."""

from __future__ import annotations

from attrs import define, field

from caldrix.weights.progress import Unit


@define
class Told:
    """See `caldrix.weights.progress.Progress`."""

    begun: list[tuple[str, int | None, Unit]] = field(factory=list)
    done: int = 0
    notes: list[str] = field(factory=list)

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        self.begun.append((what, total, unit))

    def advance(self, count: int) -> None:
        self.done += count

    def note(self, text: str) -> None:
        self.notes.append(text)
