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

    It is taken as the first of them is computed, if there is room for it then, or never.
    """

    length: int
    snapshot: Snapshot | None = field(default=None, init=False, repr=False)
    tried: bool = field(default=False, init=False)
    """Whether it was to be taken once."""
    taken: bool = field(default=False, init=False)
    """Whether it was taken, so that it was computed once."""
    abandoned: bool = field(default=False, init=False)
    """Whether nobody needs it any more."""
