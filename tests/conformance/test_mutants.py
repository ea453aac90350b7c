"""The suite's own proof: a real server made wrong in one way at a time, and each way noticed.

Together with the faulty toys it shows of every case that it can fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from caldrix.cli.conformance import own_server
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Clause, Level, load_spec
from caldrix_conformance.options import Settings
from caldrix_conformance.resources import spec_directory
from caldrix_conformance.run import judge
from caldrix_conformance.verdicts import Report, Status
from tests.mutants.exchange import Mutation
from tests.mutants.faults import FAULTS
from tests.mutants.mutations import MUTATIONS
from tests.mutants.proxy import Proxy, proxying
from tests.mutants.toy.server import Toy

CAN = frozenset(Capability) - Toy.lacks
"""What the server behind the proxy can do at least: mutations are of these clauses.

What else it has come to do is broken by the faulty toys alone.
"""

OF_A_LIVE_SERVER = frozenset({"wire.ids.numbered"})
"""What no recorded answers keep: their ids are of many runs. A toy shows that it can fail."""


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[str]:
    """Our own server on the embedded model."""
    assert smollm2_path.exists()
    with own_server() as url:
        yield url


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[Proxy]:
    with proxying(server) as proxy:
        yield proxy


def judged(settings: Settings) -> Report:
    report = judge(settings)
    assert report is not None
    assert report.faults == []
    return report


def matches(clause_id: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(clause_id, glob) for glob in globs)


def test_an_unmutated_proxy_changes_nothing(proxy: Proxy) -> None:
    """On all that hangs on connections and framing; what else there is would be noticed below."""
    areas = ("wire.*", "server.*", "errors.*", "streaming.*", "health.*", "models.*", "template.*")
    through = judged(Settings(url=proxy.url, only=areas))
    assert [v for v in through.broken(*Level) if v.clause.id not in OF_A_LIVE_SERVER] == []
    assert through.counts()[Status.ERROR] == 0
    assert through.counts()[Status.PASSED] > 100
    assert through.capabilities >= CAN


def test_every_mutation_has_its_own_name() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mutation_breaks_just_its_own_clauses(proxy: Proxy, mutation: Mutation) -> None:
    with proxy.mutated(mutation) as url:
        report = judged(Settings(url=url, only=mutation.areas, timeout=mutation.timeout))
    broken = {
        v.clause.id: v.seen for v in report.broken(*Level) if v.clause.id not in OF_A_LIVE_SERVER
    }
    judgements = [v for v in report.verdicts if v.status in (Status.PASSED, Status.FAIL)]
    wanted = {v.clause.id for v in judgements if matches(v.clause.id, mutation.breaks)}
    assert broken.keys() == wanted, broken
    # A glob that finds nothing, or a clause that was not judged, would prove nothing.
    assert [glob for glob in mutation.breaks if not any(matches(i, [glob]) for i in broken)] == []
    assert report.counts()[Status.ERROR] == 0


def test_every_case_can_fail() -> None:
    """Each clause that a case judges is broken by some faulty server."""
    clauses = [one for one in load_spec(spec_directory("caldrix")) if one.untestable is None]
    proven = frozenset[str]().union(*FAULTS.values())
    proven |= {clause.id for clause in clauses if is_mutated(clause)}
    assert [clause.id for clause in clauses if clause.id not in proven] == []


def is_mutated(clause: Clause) -> bool:
    """Whether a mutation breaks it on the server behind the proxy."""
    return clause.needs <= CAN and any(
        matches(clause.id, mutation.breaks) for mutation in MUTATIONS
    )
