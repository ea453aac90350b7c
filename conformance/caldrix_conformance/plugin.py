"""The pytest plugin: it connects to the target, hands it to the cases, and judges the clauses.

Loaded by name (``-p caldrix_conformance.plugin``), as `caldrix_conformance.run` does; it never
loads itself into other people's test runs.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import attrs
import httpx2
import pytest
from attrs import define, field
from syrupy.assertion import SnapshotAssertion

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Clause, Spec, load_spec
from caldrix_conformance.contracts import discovery_of
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.fingerprint import Recognizer
from caldrix_conformance.goldens import Golden, orphans
from caldrix_conformance.judged import judges_none, remember
from caldrix_conformance.marks import (
    CAPTURED_MARK,
    MARK,
    NEEDS_MARK,
    clauses_of,
    golden_of,
    needs_of,
)
from caldrix_conformance.presence import Presence
from caldrix_conformance.resources import in_checkout, spec_directory
from caldrix_conformance.target import TIMEOUT, Target, shown_url
from caldrix_conformance.traffic import Exchange, Traffic
from caldrix_conformance.verdicts import Ledger, Observation, Report, Status, lacks


@define
class Run:
    """The state of one run."""

    spec: Spec
    target: Target
    only: Sequence[str]
    presence: Presence
    ledger: Ledger = field(factory=Ledger)
    began: datetime = field(factory=lambda: datetime.now(UTC))
    declared: frozenset[str] = frozenset()
    """The ids of the clauses that some case judges."""

    def in_scope(self, clause_id: str) -> bool:
        """Whether the person asked for that clause."""
        return not self.only or any(fnmatch.fnmatchcase(clause_id, glob) for glob in self.only)

    def report(self) -> Report:
        """The verdict on each clause in scope."""
        capabilities = self.target.capabilities
        return Report(
            contract=self.spec.contract,
            target=shown_url(self.target.url),
            model=_printable(self.target.model, most=_MOST_OF_A_NAME),
            capabilities=capabilities,
            verdicts=[
                self.ledger.judge(clause, capabilities, clause.id in self.declared)
                for clause in self.spec
                if self.in_scope(clause.id)
            ],
            faults=self.ledger.faults,
            began=self.began,
            seconds=(datetime.now(UTC) - self.began).total_seconds(),
            broke_off=self.ledger.broke_off,
        )


_RUN = pytest.StashKey[Run]()
_OPEN = pytest.StashKey[ExitStack]()
_REQUEST = pytest.StashKey[pytest.FixtureRequest]()


def report_of(config: pytest.Config) -> Report:
    """The report of a session that has ended. Raises KeyError if it never began."""
    return config.stash[_RUN].report()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the suite's options."""
    group = parser.getgroup("conformance", "caldrix conformance suite")
    group.addoption("--target", metavar="URL", help="the server to judge")
    group.addoption("--model", metavar="NAME", help="its model; default: what /v1/models names")
    group.addoption("--contract", default="caldrix", help="the contract to judge it by")
    group.addoption(
        "--timeout",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help="how long to wait for bytes before an answer counts as missing",
    )
    group.addoption(
        "--without",
        action="append",
        default=[],
        choices=[capability.value for capability in Capability],
        help="a capability that the target lacks; may be repeated",
    )
    group.addoption(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="judge only clauses whose id matches, as in 'chat.*'; may be repeated",
    )
    group.addoption(
        "--write-goldens", action="store_true", help="write goldens from the target's answers"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the spec and connect to the target."""
    if config.option.help:
        return
    config.addinivalue_line("markers", f"{MARK}(*clause_ids): the clauses that a case judges")
    config.addinivalue_line("markers", f"{NEEDS_MARK}(*capabilities): what else it needs")
    config.addinivalue_line("markers", f"{CAPTURED_MARK}(name): the golden that it uses")
    url = config.getoption("--target")
    if url is None:
        raise pytest.UsageError("give the server to judge with --target URL")
    writing = bool(config.getoption("--write-goldens"))
    if writing and not in_checkout():
        raise pytest.UsageError("goldens are kept in a checkout, and can be written only there")
    # Syrupy looks for snapshots that no test used by each test's file, which isn't where ours lie:
    # `orphans` does that.
    config.option.disable_unused_snapshots = True
    config.option.update_snapshots = writing
    stack = config.stash[_OPEN] = ExitStack()
    try:
        spec = load_spec(spec_directory(config.getoption("--contract")))
        target = stack.enter_context(
            Target.connect(url, config.getoption("--model"), config.getoption("--timeout"))
        )
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from error
    without = frozenset(map(Capability, config.getoption("--without")))
    target = attrs.evolve(target, capabilities=discovery_of(spec.contract)(target, without))
    config.stash[_RUN] = Run(spec, target, config.getoption("--only"), Presence(target))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the connections to the target."""
    stack = config.stash.get(_OPEN, None)
    if stack is not None:
        stack.close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a module that judges nothing of what the person asked for."""
    run = config.stash[_RUN]
    # Goldens are written by the whole suite: what no case uses any more shows only there.
    if not run.only or config.getoption("--write-goldens"):
        return None
    return judges_none(collection_path, run.in_scope) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hold each case against the spec, and leave out what the person didn't ask for."""
    run = config.stash[_RUN]
    declared: set[str] = set()
    selected = []
    for item in items:
        clause_ids = clauses_of(item)
        if not clause_ids:
            raise pytest.UsageError(f"{item.nodeid} says of no clause that it judges it")
        for clause in _declared(run.spec, item, clause_ids):
            declared.add(clause.id)
        if any(map(run.in_scope, clause_ids)):
            selected.append(item)
    run.declared = frozenset(declared)
    names = _goldens(items)
    # One that is named by its node comes without the others of its module.
    if not any("::" in argument for argument in config.args):
        remember(items)
    # The goldens of a module that can't be imported would pass for orphans.
    if not run.ledger.faults and (config.getoption("--write-goldens") or not run.only):
        run.ledger.faults.extend(orphans(run.spec.contract, names))
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = selected


def _goldens(items: Sequence[pytest.Item]) -> frozenset[str]:
    """The goldens that cases are marked with, which those that use the fixture must be."""
    names = set()
    for item in items:
        name = golden_of(item)
        uses_it = "golden" in getattr(item, "fixturenames", ())
        if uses_it != (name is not None):
            raise pytest.UsageError(
                f"{item.nodeid}: a case with the fixture golden, and no other, is marked with "
                f"@{CAPTURED_MARK}, which names that golden"
            )
        if name is not None:
            names.add(name)
    return frozenset(names)


def _declared(spec: Spec, item: pytest.Item, clause_ids: Sequence[str]) -> Iterator[Clause]:
    for clause_id in clause_ids:
        try:
            clause = spec.clause(clause_id)
        except SuiteError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from error
        if clause.untestable is not None:
            raise pytest.UsageError(f"{item.nodeid} judges {clause_id}, said to be untestable")
        yield clause


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Nothing is left out unseen: a module that can't be imported fails the run."""
    report = yield
    if report.failed:
        faults = collector.config.stash[_RUN].ledger.faults
        faults.append(f"{report.nodeid} can't be collected: {report.longreprtext}")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Pass over a case whose clauses need what the target lacks."""
    lacking = _lacking(item, item.config.stash[_RUN])
    if lacking:
        pytest.skip(lacks(lacking))


def _lacking(item: pytest.Item, run: Run) -> frozenset[Capability]:
    of_clauses = (run.spec.clause(clause_id).needs for clause_id in clauses_of(item))
    return needs_of(item).union(*of_clauses) - run.target.capabilities


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Don't let a run that broke off pass for one that is done."""
    run = session.config.stash[_RUN]
    if exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        run.ledger.faults.append("pytest failed while running the cases")
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        run.ledger.broke_off = "it was interrupted"
    if run.ledger.broke_off:
        done = {observation.case for observation in run.ledger.observations}
        for item in session.items:
            if item.nodeid not in done and not _lacking(item, run):
                for clause_id in clauses_of(item):
                    left = Observation(clause_id, item.nodeid, Status.UNJUDGED, "the run broke off")
                    run.ledger.note(left)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """An exchange that a fixture begins is told by each case that uses it."""
    traffic = request.config.stash[_RUN].target.traffic
    with traffic.of((fixturedef.baseid, fixturedef.argname)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """An exchange that a case begins is its own."""
    traffic = item.config.stash[_RUN].target.traffic
    with traffic.of(item.nodeid):
        result = yield
    traffic.forget(item.nodeid)
    return result


def _traffic_of(item: pytest.Item, traffic: Traffic) -> Sequence[Exchange]:
    """The exchanges of a case and of its fixtures, those that came first first."""
    assert isinstance(item, pytest.Function)
    # A fixture may be of the whole suite, of a folder, or of the case's own module.
    places = ("", *(node.nodeid for node in item.listchain()[1:-1]))
    used = item.stash[_REQUEST].fixturenames if _REQUEST in item.stash else item.fixturenames
    owners = [(place, name) for name in used for place in places]
    told = [exchange for owner in owners for exchange in traffic.told_by(owner)]
    return [*told, *traffic.told_by(item.nodeid)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note what this phase of the case says of its clauses; pytest makes its report after that."""
    if call.excinfo is None and call.when != "call":
        return
    status, seen = _outcome(call)
    seen = _printable(seen)
    run = item.config.stash[_RUN]
    unwell = status in (Status.FAIL, Status.ERROR)
    trouble = run.presence.trouble_after(status, call.duration)
    if trouble is not None:
        run.ledger.broke_off = f"{trouble}, since {item.nodeid}"
        item.session.shouldfail = trouble
    traffic = _traffic_of(item, run.target.traffic) if unwell else ()
    for clause_id in clauses_of(item):
        run.ledger.note(Observation(clause_id, item.nodeid, status, seen, traffic))


_BROKEN = (httpx2.RequestError, ConnectionError, TimeoutError)


def _outcome(call: pytest.CallInfo[None]) -> tuple[Status, str]:
    if call.excinfo is None:
        return Status.PASSED, ""
    error = call.excinfo.value
    if isinstance(error, pytest.skip.Exception):
        return Status.UNSUPPORTED, str(error)
    if isinstance(error, AssertionError):
        # A check without words of its own is told by its source.
        seen = str(error).partition("\n")[0] or str(call.excinfo.traceback[-1].statement)
        return Status.FAIL, seen
    if isinstance(error, _BROKEN):
        return Status.FAIL, f"no answer: {str(error) or type(error).__name__}"
    return Status.ERROR, f"{type(error).__name__}: {error}"


_MOST_OF_A_NAME = 200
_MOST_SEEN = 2000


def _printable(text: str, *, most: int = _MOST_SEEN) -> str:
    """``text`` as one line that no terminal and no XML stumbles over, whatever a target sent."""
    cut = text if len(text) <= most else f"{text[:most]}…"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut
    )


@pytest.fixture(autouse=True)
def _fixtures_used(request: pytest.FixtureRequest) -> None:
    """Keep hold of what knows the fixtures that a case asks for by name while it runs."""
    request.node.stash[_REQUEST] = request


@pytest.fixture(scope="session")
def target(pytestconfig: pytest.Config) -> Target:
    """The server being judged."""
    return pytestconfig.stash[_RUN].target


@pytest.fixture(scope="session")
def recognizer(pytestconfig: pytest.Config, target: Target) -> Recognizer:
    """What knows the target's model by what it does."""
    return Recognizer(pytestconfig.stash[_RUN].spec.contract, target)


@pytest.fixture
def golden(
    request: pytest.FixtureRequest,
    snapshot: SnapshotAssertion,
    pytestconfig: pytest.Config,
    recognizer: Recognizer,
) -> Golden:
    """The golden that the case is marked with."""
    name = golden_of(request.node)
    assert name is not None
    writing = bool(pytestconfig.getoption("--write-goldens"))
    return Golden(pytestconfig.stash[_RUN].spec.contract, name, snapshot, recognizer, writing)
