"""Whether the target is still there: a run on one that is gone breaks off, and says so once.

Without that each case left would fail for want of an answer, some after a long wait, and the report
would name hundreds of clauses as broken that nobody has judged.
"""

from __future__ import annotations

from attrs import define

from caldrix_conformance.target import Target
from caldrix_conformance.verdicts import Status

MOST_WAITS = 3
"""So many cases may wait for the whole time-out in vain, with none that is kept between them."""


@define
class Presence:
    """Looks after a target during a run."""

    _target: Target
    _waits: int = 0

    def trouble_after(self, status: Status, seconds: float) -> str | None:
        """Why the run must break off after a case that took ``seconds``; None if it need not."""
        if status is Status.PASSED:
            self._waits = 0
        if status not in (Status.FAIL, Status.ERROR):
            return None
        if not self._target.answers():
            return f"nothing answers at {self._target.url} any more"
        self._waits += seconds >= self._target.timeout
        if self._waits < MOST_WAITS:
            return None
        waited = f"{MOST_WAITS} cases waited {self._target.timeout:g} s each in vain"
        return f"{waited}, and between them none was kept"
