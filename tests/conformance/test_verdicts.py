"""From observations to verdicts, and from verdicts to an exit status."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Clause, Level
from caldrix_conformance.verdicts import Ledger, Observation, Report, Status, Verdict

CHAT = frozenset({Capability.CHAT})


def clause(
    level: Level = Level.MUST,
    *,
    needs: frozenset[Capability] = frozenset(),
    untestable: str | None = None,
) -> Clause:
    return Clause(
        id="a.b",
        level=level,
        promise="It is.",
        where="There",
        needs=needs,
        untestable=untestable,
    )


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ([Status.PASSED], Status.PASSED),
        ([Status.PASSED, Status.UNSUPPORTED], Status.PASSED),
        ([Status.UNSUPPORTED], Status.UNSUPPORTED),
        ([Status.PASSED, Status.FAIL], Status.FAIL),
        ([Status.FAIL, Status.ERROR, Status.PASSED], Status.ERROR),
    ],
)
def test_the_worst_case_decides(seen: list[Status], verdict: Status) -> None:
    ledger = Ledger([Observation("a.b", f"case {i}", one, "x") for i, one in enumerate(seen)])
    assert ledger.judge(clause(), CHAT, has_case=True).status is verdict


@pytest.mark.parametrize(
    ("judged", "capabilities", "has_case", "status", "seen"),
    [
        (clause(), CHAT, True, Status.FAIL, "never judged"),
        (clause(), CHAT, False, Status.ERROR, "no case of the suite declares it"),
        (clause(needs=CHAT), frozenset(), True, Status.UNSUPPORTED, "the target lacks chat"),
        (clause(needs=CHAT), CHAT, True, Status.FAIL, "never judged"),
        (clause(untestable="too slow"), CHAT, False, Status.UNTESTABLE, "too slow"),
    ],
)
def test_without_an_observation(
    judged: Clause,
    capabilities: frozenset[Capability],
    has_case: bool,
    status: Status,
    seen: str,
) -> None:
    verdict = Ledger().judge(judged, capabilities, has_case)
    assert (verdict.status, verdict.seen) == (status, seen)


@pytest.mark.parametrize(
    ("level", "status", "faults", "lax", "strict"),
    [
        (Level.MUST, Status.PASSED, [], 0, 0),
        (Level.MUST, Status.UNSUPPORTED, [], 0, 0),
        (Level.MUST, Status.FAIL, [], 1, 1),
        (Level.SHOULD, Status.FAIL, [], 0, 1),
        (Level.MAY, Status.FAIL, [], 0, 0),
        (Level.MAY, Status.ERROR, [], 1, 1),
        (Level.MAY, Status.PASSED, ["test_x.py can't be collected"], 1, 1),
    ],
)
def test_exit_status(
    level: Level, status: Status, faults: list[str], lax: int, strict: int
) -> None:
    report = Report(
        contract="caldrix",
        target="http://localhost",
        model="m",
        capabilities=CHAT,
        verdicts=[Verdict(clause(level), status, "", [])],
        faults=faults,
        began=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=1.0,
    )
    assert (report.exit_status(strict=False), report.exit_status(strict=True)) == (lax, strict)
