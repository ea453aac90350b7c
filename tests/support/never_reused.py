"""What an executor lacks whose rows are never gone on from."""

from __future__ import annotations

from caldrix.models.lane import LaneError, PrefillSizes, Snapshot


class NeverReused:
    """A base of executors that know nothing of what their rows hold."""

    prefill = PrefillSizes()
    row_bytes = 0
    reproducible = False
    rewinds = False

    def resumable(self, row: int, length: int) -> int:
        return 0

    def copy_row(self, source: int, target: int, length: int) -> None:
        raise LaneError(f"nothing can be copied from row {source} to {target}")

    def snapshot(self, row: int, length: int) -> Snapshot:
        raise LaneError(f"nothing can be kept of row {row}")

    def snapshot_bytes(self, length: int) -> int:
        return 0

    def restore(self, snapshot: Snapshot, row: int) -> None:
        raise LaneError(f"nothing can be restored to row {row}")
