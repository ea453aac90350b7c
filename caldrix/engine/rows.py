"""Which row holds what: rows at work, rows held for a next turn, and rows of shared prefixes.

A row keeps what was computed in it after its request is done, until its place is needed. A new
prompt goes on from the longest prefix that any row has in common with it, in that row itself or in
a copy, which costs next to nothing beside computing it. Prefixes that several conversations begin
with, a system prompt above all, can be kept in rows of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
import structlog
from attrs import define, field

from caldrix.engine.kept import Kept
from caldrix.models.lane import Executor, LaneLost, Snapshot

_log = structlog.get_logger(__name__)

LEAST_SHARED = 32
"""Tokens below which a prefix is not worth a row of its own."""


@define(eq=False)
class Row:
    """What a row holds: the first ``length`` of ``tokens``, of which ``prompt_tokens`` were asked.

    ``tokens`` is the list of the sequence at work in it, which grows.
    """

    number: int
    tokens: array[int] = field(factory=lambda: array("q"))
    prompt_tokens: int = 0
    length: int = 0
    last_use: int = 0
    private: bool = False
    """Whether its tokens don't tell all that it was computed from, so that nobody goes on from it.
    """

    def hold(self, tokens: array[int], prompt_tokens: int, length: int) -> None:
        """Records that it holds the first ``length`` of ``tokens``."""
        self.tokens, self.prompt_tokens, self.length = tokens, prompt_tokens, length


class Rows:
    """Gives rows to sequences and takes them back.

    ``prefix_rows`` of the executor's rows, the last ones, are kept for shared prefixes. Snapshots
    may take as much memory as ``snapshots`` rows.
    """

    def __init__(
        self, executor: Executor, working_rows: int, prefix_rows: int, snapshots: int
    ) -> None:
        self._executor = executor
        self._working = [Row(number) for number in range(working_rows)]
        self._free = list(self._working)
        self._prefixes = [Row(working_rows + number) for number in range(prefix_rows)]
        self._snapshot_bytes = snapshots * executor.row_bytes
        self._kept: list[Kept] = []
        """Those that have a snapshot."""
        self._clock = 0

    @property
    def free(self) -> int:
        """How many rows a sequence could be given."""
        return len(self._free)

    @property
    def reuses(self) -> bool:
        """Whether what rows hold may be gone on from."""
        return self._executor.reproducible

    @property
    def shares_prefills(self) -> bool:
        """Whether one that is being computed can be gone on from where two prompts part."""
        return self.reuses and self._executor.rewinds

    def take_private(self, tokens: array[int]) -> Row:
        """A free row for a sequence that goes on from nothing, and that nothing goes on from."""
        row = _least_missed(self._free)
        row.hold(tokens, len(tokens), 0)
        row.private = True
        self._free.remove(row)
        self._touch(row)
        return row

    def take(self, tokens: array[int], kept: Kept | None = None) -> Row:
        """A free row for a sequence of ``tokens``, its prompt so far; ``length`` are computed.

        At least one token is left to compute, whose logits are wanted; and of those that are yet
        to be ``kept``, no more than they are.
        """
        most = len(tokens) - 1
        if kept is not None and kept.due:
            most = min(most, kept.length)
        source, length = self._longest_prefix(tokens, most)
        row = self._place(source, length)
        if kept is not None and kept.snapshot is not None and kept.length > length:
            length = self._restored(kept.snapshot, row)
        elif source is not None:
            parts = kept is None and length < min(source.prompt_tokens, len(tokens) - 1)
            if parts and source in self._working:
                self._keep_prefix(source, length)
            if source is not row:
                length = self._copied(source, row, length)
            self._touch(source)
        row.hold(tokens, len(tokens), length)
        self._free.remove(row)
        self._touch(row)
        return row

    def new_kept(self, length: int) -> Kept:
        """For prompts that begin with the same ``length`` tokens."""
        return Kept(length, possible=self.reuses and self._snapshot_bytes > 0)

    def keep(self, row: Row, kept: Kept) -> None:
        """Takes a snapshot of a row that holds just what is to be kept, if there is room for it."""
        assert row.length == kept.length
        lengths = [each.length for each in (*self._kept, kept)]
        try:
            if sum(map(self._executor.snapshot_bytes, lengths)) > self._snapshot_bytes:
                return
            kept.snapshot = self._executor.snapshot(row.number, kept.length)
        except LaneLost:
            raise
        except Exception:  # noqa: BLE001  # whatever broke, they can be computed each time
            _log.exception("row_not_kept", positions=kept.length)
            kept.failed = True
            return
        kept.taken = True
        self._kept.append(kept)

    def drop_abandoned(self) -> None:
        """Lets go of what nobody needs any more."""
        for kept in [kept for kept in self._kept if kept.abandoned]:
            kept.snapshot = None
            self._kept.remove(kept)

    def give_back(self, row: Row) -> None:
        """Takes a row back; what it holds stays until its place is needed, if it is not private."""
        if row.private:
            row.hold(array("q"), 0, 0)
            row.private = False
        self._free.append(row)
        self._touch(row)

    def _touch(self, row: Row) -> None:
        self._clock += 1
        row.last_use = self._clock

    def _longest_prefix(self, tokens: array[int], most: int) -> tuple[Row | None, int]:
        """The row that has most in common with ``tokens``, and how much can be gone on from.

        That is at most ``most``.
        """
        if not self.reuses:
            return None, 0
        best, longest = None, 0
        for row in self._all():
            shared = min(_in_common(tokens, row), most)
            if shared > longest:
                length = self._resumable(row, shared)
                if length > longest:
                    best, longest = row, length
        return best, longest

    def _resumable(self, row: Row, length: int) -> int:
        try:
            return self._executor.resumable(row.number, length)
        except LaneLost:
            raise
        except Exception:  # noqa: BLE001  # whatever broke, it can be computed after all
            _log.exception("row_not_resumed", positions=length)
            return 0

    def _place(self, source: Row | None, length: int) -> Row:
        """The free row to work in: the source if most of it is used, or the least missed one."""
        if source in self._free and 2 * length >= source.length:
            return source
        return _least_missed(self._free)

    def _keep_prefix(self, source: Row, length: int) -> None:
        """Keeps what two conversations have in common, unless a row already holds it."""
        if length < LEAST_SHARED or not self._prefixes:
            return
        if any(_in_common(source.tokens, kept) >= length for kept in self._prefixes):
            return
        row = _least_missed(self._prefixes)
        row.hold(source.tokens[:length], length, self._copied(source, row, length))
        self._touch(row)

    def _copied(self, source: Row, target: Row, length: int) -> int:
        """Copies so many positions; returns how many there are now: none, if that failed."""
        try:
            self._executor.copy_row(source.number, target.number, length)
        except LaneLost:
            raise
        except Exception:  # noqa: BLE001  # whatever broke, they can be computed after all
            _log.exception("row_not_copied", positions=length)
            return 0
        return length

    def _restored(self, snapshot: Snapshot, row: Row) -> int:
        """Puts a snapshot into a row; returns how many positions there are now, as `_copied`."""
        try:
            self._executor.restore(snapshot, row.number)
        except LaneLost:
            raise
        except Exception:  # noqa: BLE001  # whatever broke, they can be computed after all
            _log.exception("row_not_restored", positions=snapshot.length)
            return 0
        return snapshot.length

    def _all(self) -> Iterable[Row]:
        # A kept prefix first: of equals, the one that stays where it is.
        return (*self._prefixes, *(row for row in self._working if not row.private))


def common_prefix(first: array[int], second: array[int]) -> int:
    """How many tokens both begin with."""
    length = min(len(first), len(second))
    if not length:
        return 0
    differs = np.frombuffer(first, np.int64, length) != np.frombuffer(second, np.int64, length)
    where = int(differs.argmax())
    return where if differs[where] else length


def _in_common(tokens: array[int], row: Row) -> int:
    """How many of the first tokens a row holds."""
    return min(common_prefix(tokens, row.tokens), row.length)


def _least_missed(rows: Iterable[Row]) -> Row:
    """An empty row, or the one that was not used for longest."""
    return min(rows, key=lambda row: (row.length > 0, row.last_use))
