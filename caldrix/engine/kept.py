"""A beginning that several prompts of one client have in common, computed once and kept for it.

Rows keep what they hold until their place is needed; others may come between a client's prompts,
and some models go on from a row's very end alone. What is kept is a snapshot, which nobody else
uses, and which goes with the block that asked for it.
"""

from __future__ import annotations

from attrs import define, field

from caldrix.models.lane import Snapshot


@define(eq=False)
class Kept:
    """The first ``length`` tokens of all prompts that are given it.

    It is taken as one of them is computed, the first one if there is room for it then. The engine's
    thread takes it and lets go of it; the event loop says when nobody needs it any more.
    """

    length: int
    possible: bool
    """Whether the engine keeps anything at all."""
    snapshot: Snapshot | None = field(default=None, init=False, repr=False)
    taken: bool = field(default=False, init=False)
    """Whether there is, or was, a snapshot."""
    failed: bool = field(default=False, init=False)
    """Whether taking it broke, so that it is not tried again."""
    abandoned: bool = field(default=False, init=False)
    """Whether nobody needs it any more."""

    @property
    def due(self) -> bool:
        """Whether it is yet to be taken."""
        return self.possible and not (self.taken or self.failed or self.abandoned)
