"""What an executor lacks whose rows are never gone on from."""

from __future__ import annotations

from caldrix.models.lane import LaneError


class NeverReused:
    """A base of executors that know nothing of what their rows hold."""

    row_bytes = 0
    reproducible = False

    def resumable(self, row: int, length: int) -> int:
        return 0

    def copy_row(self, source: int, target: int, length: int) -> None:
        raise LaneError(f"nothing can be copied from row {source} to {target}")
