"""What a difference of specs says and when it fails, on a small repository changed in each way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from caldrix_conformance.spec_diff.__main__ import main
from caldrix_conformance.spec_diff.cases import (
    Case,
    CasesOfTwo,
    Names,
    NotCollected,
    asserted,
    cases_at,
)
from caldrix_conformance.spec_diff.changes import Move, Promise, SpecDiff, compare, moves
from caldrix_conformance.spec_diff.command import diff_since
from caldrix_conformance.spec_diff.markdown import code, escape, markdown, words
from caldrix_conformance.spec_diff.revisions import Checkout

SUITE = "conformance/caldrix_conformance"
CASES = f"{SUITE}/cases/demo/test_chat.py"
CONFTEST = f"{SUITE}/cases/demo/conftest.py"
SPEC = "spec/demo/chat.toml"
GOLDEN = "goldens/demo/chat/answer.json"

CLAUSES = ("one.taken", "two.taken", "shape", "golden", "limit", "lambda.a", "lambda.b")
FILES = {
    f"{SUITE}/__init__.py": "",
    f"{SUITE}/marks.py": """
import pytest

def checks(*ids):
    return pytest.mark.checks.with_args(*ids)
""",
    f"{SUITE}/shapes.py": """
ANSWER = {"id": str}

class Client:
    def __init__(self, patience=1):
        self.patience = patience

    def ask(self):
        return {}

CLIENT = Client(4)
""",
    f"{SUITE}/cases/pytest.toml": '[pytest]\naddopts = ["--strict-markers"]\n',
    CONFTEST: """
import pytest
from caldrix_conformance.shapes import Client

PROMPT = "Hi"

@pytest.fixture
def answer(client):
    return Client().ask(PROMPT)
""",
    CASES: """
import pytest
from caldrix_conformance.marks import checks
from caldrix_conformance.shapes import ANSWER, CLIENT, Client

TAKEN = {"one": [1, 2], "two": [3]}
LIMIT = 7

def rows(table):
    return [
        pytest.param(value, marks=checks(f"chat.{name}.taken"))
        for name, values in table.items()
        for value in values
    ]

@pytest.mark.parametrize("value", rows(TAKEN))
def test_taken(value):
    assert value

@checks("chat.shape")
def test_shape(client: Client, answer):
    assert answer == ANSWER != CLIENT

@checks("chat.golden")
def test_golden(golden):
    golden.check("chat/answer")

def expect_limit(seen):
    # As the document has it.
    assert seen == LIMIT

@checks("chat.limit")
def test_limit(answer):
    expect_limit(len(answer))

@pytest.mark.parametrize("check", [
    pytest.param(lambda answer: answer["a"] == 1, marks=checks("chat.lambda.a")),
    pytest.param(lambda answer: answer["b"] == LIMIT, marks=checks("chat.lambda.b")),
])
def test_lambda(answer, check):
    assert check(answer)
""",
    GOLDEN: '{"id": 1}\n',
    SPEC: 'title = "Chat"\n'
    + "".join(
        f'[[clause]]\nid = "chat.{name}"\nlevel = "must"\nwhere = "C"\n'
        f'promise = "It keeps {name}."\n'
        for name in CLAUSES
    ),
}


def write_all(root: Path) -> Path:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


class Repository:
    """A git repository with a spec, cases and goldens; each edit is to the working tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "trunk")
        write_all(root)
        self.commit()

    def git(self, *arguments: str) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        command = ["git", *settings, *arguments]
        return subprocess.run(
            command, cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def edit(self, name: str, old: str, new: str) -> None:
        edit(self.root / name, old, new)

    def promise(self, name: str) -> None:
        """Change what a clause promises."""
        self.edit(SPEC, f"It keeps {name}.", f"It never keeps {name}.")

    def diff(self, revision: str = "HEAD") -> SpecDiff:
        checkout = Checkout.around(self.root)
        return diff_since(checkout, checkout.commit(revision), "demo")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "project").mkdir()
    return Repository(tmp_path / "project")


TESTS = "test_chat.py::test_"


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Case]:
    return cases_at(write_all(tmp_path_factory.mktemp("baseline")), "demo")


def moved(old: Sequence[Case], root: Path) -> Mapping[str, Mapping[str, Move]]:
    """For each clause of which some case moved, what moved."""
    cases = CasesOfTwo(old, cases_at(root, "demo"))
    found = {name: moves(cases, f"chat.{name}") for name in CLAUSES}
    return {name: cases for name, cases in found.items() if cases}


def test_what_does_not_change_what_a_case_does(baseline: Sequence[Case], tmp_path: Path) -> None:
    write_all(tmp_path)
    edit(tmp_path / CASES, "# As the document has it.", "# So.")
    edit(tmp_path / CASES, "client: Client", "client: object")
    edit(tmp_path / CASES, "golden):\n", 'golden):\n    "It says."\n')
    edit(tmp_path / CASES, "test_limit", "test_bound")
    edit(tmp_path / f"{SUITE}/shapes.py", "{}", "[]")
    (tmp_path / CASES).rename(tmp_path / CASES.replace("chat", "talk"))
    assert moved(baseline, tmp_path) == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (CASES, "== ANSWER", "!= ANSWER", {"shape": {"shape": Move.CHANGED}}),
        # Its helper's constant, and one row's lambda's.
        (
            CASES,
            "LIMIT = 7",
            "LIMIT = 8",
            {"limit": {"limit": Move.CHANGED}, "lambda.b": {"lambda": Move.CHANGED}},
        ),
        (CASES, '["b"] ==', '["c"] ==', {"lambda.b": {"lambda": Move.ROWS}}),
        (CASES, "[1, 2]", "[1, 5]", {"one.taken": {"taken": Move.ROWS}}),
        (CASES, "[1, 2]", "[1]", {"one.taken": {"taken": Move.ROWS}}),
        # Its fixture's constant, in another file.
        (
            CONFTEST,
            '"Hi"',
            '"Ho"',
            {
                "shape": {"shape": Move.CHANGED},
                "limit": {"limit": Move.CHANGED},
                "lambda.a": {"lambda": Move.CHANGED},
                "lambda.b": {"lambda": Move.CHANGED},
            },
        ),
        # A shape of the suite's own.
        (f"{SUITE}/shapes.py", "str", "int", {"shape": {"shape": Move.CHANGED}}),
        # But no class of it, and no instance of one.
        (f"{SUITE}/shapes.py", "return {}", "return []", {}),
        (f"{SUITE}/shapes.py", "Client(4)", "Client(5)", {}),
        (
            CASES,
            'checks("chat.shape")',
            'checks("chat.shape", "chat.limit")',
            {"limit": {"shape": Move.DECLARED}},
        ),
        (
            CASES,
            'checks("chat.shape")',
            'checks("chat.limit")',
            {"shape": {"shape": Move.UNDECLARED}, "limit": {"shape": Move.DECLARED}},
        ),
        (
            CASES,
            '@checks("chat.shape")\ndef test_shape',
            "def expect_shape",
            {"shape": {"shape": Move.REMOVED}},
        ),
    ],
)
def test_which_cases_moved(
    baseline: Sequence[Case],
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    expected: Mapping[str, Mapping[str, Move]],
) -> None:
    edit(write_all(tmp_path) / file, old, new)
    assert moved(baseline, tmp_path) == {
        clause: {f"{TESTS}{case}": move for case, move in cases.items()}
        for clause, cases in expected.items()
    }


def test_a_promise_that_changed_alone_is_unchecked(repository: Repository) -> None:
    repository.promise("limit")
    assert [change.id for change in repository.diff().unchecked] == ["chat.limit"]


def test_a_case_in_a_file_that_git_does_not_know(repository: Repository) -> None:
    repository.promise("limit")
    text = 'from caldrix_conformance.marks import checks\n@checks("chat.limit")\n'
    path = repository.root / CASES.replace("chat", "more")
    path.write_text(f"{text}def test_more():\n    assert 1\n")
    (change,) = repository.diff().changes
    assert change.cases == {"test_more.py::test_more": Move.NEW}


def test_a_golden_that_moved_counts(repository: Repository) -> None:
    repository.promise("golden")
    repository.edit(GOLDEN, "1", "2")
    diff = repository.diff()
    assert [(c.id, c.cases, c.goldens) for c in diff.changes] == [
        ("chat.golden", {}, ["chat/answer"])
    ]
    assert (diff.unchecked, diff.stray_goldens) == ([], {})


CAPTURED = {
    "kind": "text",
    "origin": "captured",
    "model": "m",
    "tie": "the model's fingerprint",
    "margin": 9.0,
    "tolerance": None,
    "request": {"method": "POST", "body": {"prompt": "a", "seed": 1}},
    "response": {"status": 200, "body": ['{"id": "1", "text": "b"}']},
    "canonical": {"id": "<id>", "text": "b"},
}


def as_golden(**members: Any) -> bytes:
    return json.dumps(CAPTURED | members).encode()


@pytest.mark.parametrize(
    "same",
    [
        json.dumps(CAPTURED, indent=4).encode(),
        json.dumps(CAPTURED, sort_keys=True).encode(),
        as_golden(response={"status": 200, "body": ['{"id": "2", "text": "b"}']}),
        as_golden(model="the same by another name"),
    ],
)
def test_a_golden_that_asserts_the_same_has_not_moved(same: bytes) -> None:
    assert asserted(same) == asserted(as_golden())


@pytest.mark.parametrize(
    "other",
    [
        as_golden(canonical={"id": "<id>", "text": "c"}),
        as_golden(request={"method": "POST", "body": {"prompt": "a", "seed": 2}}),
        # Of another type in JSON, if equal in Python.
        as_golden(request={"method": "POST", "body": {"prompt": "a", "seed": True}}),
        as_golden(margin=0.01),
        as_golden(tolerance={"absolute": 0.1, "reason": "r"}),
        as_golden(kind="shape"),
        as_golden(tie="the model's name"),
        as_golden(counts={}),
        as_golden()[:-1],
    ],
)
def test_a_golden_that_asserts_something_else_has_moved(other: bytes) -> None:
    assert asserted(other) != asserted(as_golden())


def test_what_a_printed_golden_asserts() -> None:
    by_name = "the model's name"
    assert asserted(as_golden(tie=by_name)) != asserted(as_golden(tie=by_name, model="n"))


def test_goldens_that_are_not_json_are_compared_by_their_bytes() -> None:
    assert asserted(b"{") == asserted(b"{") != asserted(b"{ ")
    assert asserted(b"\xff") == b"\xff"
    assert asserted(b"[1]") == asserted(b"[1]\n") != asserted(b"[2]")


def test_a_golden_that_was_only_laid_out_anew_checks_nothing(repository: Repository) -> None:
    repository.promise("golden")
    repository.edit(GOLDEN, '{"id": 1}', '{\n  "id": 1\n}')
    diff = repository.diff()
    assert [change.id for change in diff.unchecked] == ["chat.golden"]
    assert diff.stray_goldens == {}


def test_goldens_that_moved_alone_are_told(repository: Repository) -> None:
    repository.promise("limit")
    repository.edit(GOLDEN, "1", "2")
    (repository.root / "goldens/demo/chat/nobody-s.json").write_text("{}\n")
    diff = repository.diff()
    assert diff.stray_goldens == {"chat/answer": ["chat.golden"], "chat/nobody-s": []}
    assert [change.id for change in diff.unchecked] == ["chat.limit"]


def test_clauses_that_come_and_go(repository: Repository) -> None:
    repository.edit(SPEC, "chat.limit", "chat.bound")
    repository.edit(CASES, "chat.limit", "chat.bound")
    diff = repository.diff()
    assert [(c.id, c.cases) for c in diff.added] == [
        ("chat.bound", {"test_chat.py::test_limit": Move.DECLARED})
    ]
    assert [(c.id, c.cases) for c in diff.removed] == [
        ("chat.limit", {"test_chat.py::test_limit": Move.UNDECLARED})
    ]
    assert diff.unchecked == []


def test_a_new_clause_wants_a_case(repository: Repository) -> None:
    repository.edit(SPEC, "chat.limit", "chat.bound")
    assert [change.id for change in repository.diff().unchecked] == ["chat.bound"]


def test_a_revision_without_a_spec(repository: Repository) -> None:
    repository.git("rm", "-r", "-q", "--cached", "spec", "conformance", "goldens")
    repository.git("commit", "-q", "-m", "nothing left")
    diff = repository.diff()
    assert len(diff.added) == len(diff.changes) == 7
    assert diff.unchecked == []


def test_a_revision_whose_suite_does_not_run_is_compared_by_source(repository: Repository) -> None:
    repository.edit(CASES, "import pytest\n", "import pytest\nimport no_such_module\n")
    repository.commit()
    repository.edit(CASES, "import no_such_module\n", "")
    for clause in ("limit", "one.taken", "golden"):
        repository.promise(clause)
    repository.edit(CASES, "[1, 2]", "[1, 5]")
    repository.edit(GOLDEN, "1", "2")
    diff = repository.diff()
    assert diff.coarse == "demo/test_chat.py: ModuleNotFoundError: No module named 'no_such_module'"
    assert {change.id: (change.cases, change.goldens) for change in diff.changes} == {
        "chat.one.taken": ({"test_chat.py::test_taken": Move.CHANGED}, []),
        "chat.golden": ({}, ["chat/answer"]),
        "chat.limit": ({}, []),
    }
    assert "don't run here" in markdown(diff, "demo", "abc")


def test_cases_of_today_that_do_not_run_are_an_error(repository: Repository) -> None:
    repository.edit(CASES, "import pytest\n", "import no_such_module\n")
    with pytest.raises(NotCollected, match="no_such_module"):
        repository.diff()


# A clause as it was, changed in one part.
OLD = Promise(id="a.turned", level="must", promise="It is so.", where="A")
HIDDEN = attrs.evolve(OLD, untestable="nobody sees it")


def difference(old: Sequence[Promise], new: Sequence[Promise]) -> SpecDiff:
    return compare(old, new, CasesOfTwo([], []), ({}, {}))


@pytest.mark.parametrize(
    ("old", "new", "terms", "unchecked"),
    [
        (OLD, attrs.evolve(OLD, promise="It is so"), ["promise"], True),
        (OLD, attrs.evolve(OLD, level="should"), ["level"], True),
        (OLD, attrs.evolve(OLD, needs=frozenset({"x"})), ["needs"], True),
        (OLD, attrs.evolve(OLD, source="choice"), ["source"], True),
        (OLD, HIDDEN, ["testable"], True),
        (HIDDEN, OLD, ["testable"], True),
        (HIDDEN, attrs.evolve(HIDDEN, promise="It was."), ["promise"], False),
        (HIDDEN, attrs.evolve(HIDDEN, untestable="nobody looks"), [], False),
        (OLD, attrs.evolve(OLD, where="B"), [], False),
    ],
)
def test_what_a_change_of_a_promise_is(
    old: Promise, new: Promise, terms: Sequence[str], unchecked: bool
) -> None:
    diff = difference([old], [new])
    (change,) = diff.changes
    assert (change.terms, change.is_unchecked) == (terms, unchecked)
    assert (diff.changed == [change], diff.reworded == [change]) == (bool(terms), not terms)


def test_words_that_are_not_of_today() -> None:
    old = attrs.evolve(OLD, level="shall", needs=frozenset({"telepathy"}))
    (change,) = difference([old], [OLD]).changes
    assert change.terms == ["level", "needs"]


def test_as_markdown() -> None:
    changed = attrs.evolve(OLD, promise="It is *not* so, <b>ever</b>.", where="B")
    new = Promise(id="a.new", level="may", promise="It\n## will be.", where="A")
    gone = Promise(id="a.gone", level="should", promise="It was_.", where="A")
    where = attrs.evolve(OLD, id="a.where")
    case = Case(
        "test_a.py::test_a", "s", "v", Names.of(frozenset({"a.turned"})), Names.of(frozenset())
    )
    diff = compare(
        [OLD, gone, where],
        [changed, new, attrs.evolve(where, where="")],
        CasesOfTwo([], [case]),
        ({}, {"a/answer": b""}),
    )
    assert markdown(diff, "demo", "abc1234") == (
        "Clauses of `demo` since `abc1234`: 1 added, 1 changed, 1 removed, 1 reworded around their "
        "promise. **1 without a case or golden that moved.**\n"
        "\n## Not checked anew\n\n"
        "- `a.new` (may): It ## will be.\n"
        "  - cases: none\n"
        "\n## Changed\n\n"
        "- `a.turned`\n"
        "  - promise was: It is ~~so.~~\n"
        "  - promise is: It is **\\*not\\* so, \\<b\\>ever\\</b\\>.**\n"
        "  - where was: A\n"
        "  - where is: B\n"
        "  - cases: `test_a.py::test_a` (new)\n"
        "\n## Removed\n\n"
        "- `a.gone` (should): It was\\_.\n"
        "\n## Other words around the same promise\n\n"
        "- `a.where`\n"
        "  - where was: A\n"
        "  - where is: (nothing)\n"
        "\n## Goldens that moved though no clause did\n\n"
        "- `a/answer`, of no clause\n"
    ).replace("## will", "\\#\\# will")


def test_texts_in_markdown() -> None:
    assert escape("max_tokens of __all__ `is` a|b ~~x~~ [1](2) & $y$") == (
        "max_tokens of \\_\\_all\\_\\_ \\`is\\` a\\|b \\~\\~x\\~\\~ \\[1\\](2) \\& \\$y\\$"
    )
    assert code("a`b") == "`` a`b ``"
    assert words("One two three.", "Nothing of that at all.") == (
        "One two three.",
        "Nothing of that at all.",
    )
    assert words("a b c d", "a x b d") == ("a b ~~c~~ d", "a **x** b d")


def test_what_it_compares_with(repository: Repository) -> None:
    checkout = Checkout.around(repository.root / "spec/demo")
    assert checkout.root == repository.root
    first = checkout.commit("HEAD")
    assert checkout.base() is None
    second, third = repository.commit(), repository.commit()
    assert checkout.base() == second
    repository.git("update-ref", "refs/remotes/origin/main", third)
    assert checkout.base() == second
    repository.git("update-ref", "refs/remotes/origin/main", first)
    assert checkout.base() == first
    repository.git("tag", "-a", "-m", "a tag", "v1", first)
    for name in ("v1", first[:9], "HEAD~2"):
        assert checkout.commit(name) == first


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, Sequence[str]]:
    status = main([*arguments, "--contract", "demo"])
    out, err = capsys.readouterr()
    return status, out, err.splitlines()


def test_the_command(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository.root / "spec")
    status, out, (line,) = run(capsys)
    assert (status, out) == (0, "")
    assert "nothing to compare with" in line
    status, out, errors = run(capsys, "HEAD")
    since = repository.git("rev-parse", "--short", "HEAD")
    assert (status, errors) == (0, [])
    assert out == f"Clauses of `demo` since `{since}`: none added, changed or removed.\n"
    repository.promise("limit")
    assert run(capsys, "HEAD")[0] == 1
    status, out, _ = run(capsys, "trunk", "--json")
    assert (status, json.loads(out)["unchecked"]) == (1, ["chat.limit"])


def test_what_it_refuses_in_one_line(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository.root)
    for revision in ("no-such-revision", "HEAD:spec"):
        status, out, (line,) = run(capsys, revision)
        assert (status, out) == (2, "")
        assert "there is no revision" in line
    assert main(["--contract", "demo", "--", "--help"]) == 2
    assert "there is no revision '--help'" in capsys.readouterr().err
    assert main(["HEAD", "--contract", "none"]) == 2
    assert "has no spec/none" in capsys.readouterr().err
    monkeypatch.chdir(repository.root.parent)
    status, _, (line,) = run(capsys, "HEAD")
    assert (status, "not a git repository" in line) == (2, True)
    monkeypatch.setenv("PATH", "")
    status, _, (line,) = run(capsys, "HEAD")
    assert (status, "git is needed" in line) == (2, True)
