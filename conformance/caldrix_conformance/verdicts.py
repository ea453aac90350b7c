"""From what each case saw to a verdict on each clause, and from those to the run's exit status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum

from attrs import Factory, define, frozen

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Clause, Level
from caldrix_conformance.traffic import Exchange


class Status(Enum):
    """The verdict on a clause, or the outcome of one case."""

    PASSED = "pass"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    """The target lacks a capability that the clause needs."""
    ERROR = "error"
    """The suite's own fault: nothing is known of the target."""
    UNTESTABLE = "untestable"
    """No black-box case can judge the clause; the spec says why."""
    UNJUDGED = "unjudged"
    """The run broke off before all cases of the clause were done, and none had failed."""


# Of several cases of a clause the worst counts; one that could not judge counts for nothing.
_WORST_FIRST = (
    Status.ERROR,
    Status.FAIL,
    Status.UNJUDGED,
    Status.PASSED,
    Status.UNSUPPORTED,
)


@frozen
class Observation:
    """What one case saw of one clause; ``seen`` is "" when all was well."""

    clause_id: str
    case: str
    status: Status
    seen: str = ""
    traffic: Sequence[Exchange] = ()
    """What went over the wire, where all was not well."""


@frozen
class Verdict:
    """The verdict on one clause, with what was seen of it."""

    clause: Clause
    status: Status
    seen: str
    cases: Sequence[str]
    failures: Sequence[Observation] = ()
    """What the cases saw that decided the verdict, where that is a failure or an error."""


@define
class Ledger:
    """Collects observations during a run."""

    observations: list[Observation] = Factory(list)
    faults: list[str] = Factory(list)
    """Troubles of the suite that belong to no clause, such as a case that can't be imported."""
    broke_off: str = ""
    """Why the run ended before all cases were done, if it did."""

    def note(self, observation: Observation) -> None:
        """Add one observation."""
        self.observations.append(observation)

    def judge(self, clause: Clause, capabilities: frozenset[Capability], has_case: bool) -> Verdict:
        """The verdict on ``clause``, of which ``has_case`` says that a case declares it."""
        seen = [one for one in self.observations if one.clause_id == clause.id]
        cases = list(dict.fromkeys(one.case for one in seen))
        for status in _WORST_FIRST:
            worst = [one for one in seen if one.status is status]
            if worst:
                failures = worst if status in (Status.FAIL, Status.ERROR) else ()
                return Verdict(clause, status, worst[0].seen, cases, failures)
        if clause.untestable is not None:
            return Verdict(clause, Status.UNTESTABLE, clause.untestable, cases)
        if not has_case:
            return Verdict(clause, Status.ERROR, "no case of the suite declares it", cases)
        lacking = clause.needs - capabilities
        if lacking:
            return Verdict(clause, Status.UNSUPPORTED, lacks(lacking), cases)
        return Verdict(clause, Status.FAIL, "never judged", cases)


@frozen(kw_only=True)
class Report:
    """A whole run."""

    contract: str
    target: str
    model: str
    capabilities: frozenset[Capability]
    verdicts: Sequence[Verdict]
    faults: Sequence[str]
    began: datetime
    """In UTC."""
    seconds: float
    broke_off: str = ""
    """Why the run ended before all cases were done, if it did."""

    def counts(self) -> Mapping[Status, int]:
        """How many clauses have each status."""
        return {
            status: sum(verdict.status is status for verdict in self.verdicts) for status in Status
        }

    def broken(self, *levels: Level) -> Sequence[Verdict]:
        """The clauses of ``levels`` that the target breaks."""
        return [
            verdict
            for verdict in self.verdicts
            if verdict.status is Status.FAIL and verdict.clause.level in levels
        ]

    def exit_status(self, *, strict: bool) -> int:
        """1 if a must is broken, a should with ``strict``, or the run wasn't whole; else 0."""
        levels = (Level.MUST, Level.SHOULD) if strict else (Level.MUST,)
        whole = not (self.faults or self.broke_off or self.counts()[Status.ERROR])
        return 0 if whole and not self.broken(*levels) else 1


def lacks(capabilities: Iterable[Capability]) -> str:
    """How a report says that the target lacks ``capabilities``."""
    names = ", ".join(sorted(capability.value for capability in capabilities))
    return f"the target lacks {names}"
