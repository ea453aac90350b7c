"""The table of jevcompat's rules that differ, and the comparison that holds a run against it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import load_spec
from caldrix_conformance.errors import SpecError, SuiteError
from caldrix_conformance.resources import spec_directory
from tests.jevcompat.command import CONTRACT, TABLE, app
from tests.jevcompat.outcome import Finding, Outcome, Result, departures, read_outcome
from tests.jevcompat.table import read_table
from tests.references.capture_jevcompat import CAPTURED
from tests.support.readable import TOKENIZER, ReadableExecutor
from tests.support.serving import MODEL, serving, trio_test

JUSTFILE = Path(__file__).parents[2] / "Justfile"
SPEC = load_spec(spec_directory(CONTRACT))
KNOWN = read_table(TABLE, SPEC)
RUN = read_outcome(CAPTURED)
CHAT_MODEL = frozenset({Capability.SYSTEMONE, Capability.ZERO_SHOT})
DECIDER = frozenset({Capability.SYSTEMONE, Capability.DECIDER})


def told(outcome: Outcome, capabilities: Set[Capability] = CHAT_MODEL) -> list[str]:
    return list(departures(outcome, KNOWN, KNOWN.applying(SPEC, capabilities)))


def with_rule(name: str, **changes: Any) -> Outcome:
    """The captured run, in which something else became of one rule."""
    results = [attrs.evolve(one, **changes) if one.id == name else one for one in RUN.results]
    assert tuple(results) != RUN.results
    return attrs.evolve(RUN, results=tuple(results))


def test_the_captured_run_is_what_the_table_foresees() -> None:
    assert told(RUN) == []
    assert len(RUN.results) == 48
    assert f'"{KNOWN.tool}=={KNOWN.version}"' in JUSTFILE.read_text("utf-8")


def broken(*cases: str) -> dict[str, Any]:
    return {"status": Result.FAIL, "findings": tuple(map(Finding, cases))}


SUMMARY = attrs.evolve(RUN.summary, untested_musts=("choice.argmax",))

# What is otherwise than in the captured run, and what is said of it
OTHERWISE: list[tuple[Outcome, str]] = [
    (
        with_rule("choice.argmax", **broken("unicode")),
        "choice.argmax is broken, and the document does not want it so",
    ),
    (
        with_rule("choice.options", **broken("choice-options:64", "choice-options:2")),
        "choice.options is broken in choice-options:2, too, where the document does not want it so",
    ),
    (
        with_rule("errors.shape", status=Result.PASS, findings=()),
        "errors.shape is in the table, and was kept",
    ),
    (
        with_rule("errors.shape", status=Result.SKIP, findings=()),
        "errors.shape is in the table, and was not tested",
    ),
    (
        with_rule("http.models", id="http.list"),
        "http.models is in the table and is no rule of jevcompat",
    ),
    (
        attrs.evolve(RUN, tool_version="0.2.0"),
        "the table is of jevcompat 0.1.1, and this is 0.2.0",
    ),
    (attrs.evolve(RUN, aborted="no answer"), "nothing was tested: no answer"),
    (attrs.evolve(RUN, summary=SUMMARY), "choice.argmax was not tested"),
    (
        attrs.evolve(RUN, case_errors=(("unicode", "reset"),)),
        "a case came to no end: unicode: reset",
    ),
    (attrs.evolve(RUN, inconclusive=("unicode: 60 s",)), "a case came to no end: unicode: 60 s"),
]


@pytest.mark.parametrize(("outcome", "said"), OTHERWISE, ids=[said for _, said in OTHERWISE])
def test_whatever_else_comes_out_is_told(outcome: Outcome, said: str) -> None:
    assert told(outcome)[0] == said


def test_a_rule_counts_where_the_server_is_held_to_its_clauses() -> None:
    # A decider takes more options than there are letters.
    assert told(RUN, DECIDER) == ["choice.options is broken, and the document does not want it so"]
    assert told(with_rule("choice.options", status=Result.PASS, findings=()), DECIDER) == []


Change = Callable[[str], str]

# What a table is made of instead, and what is said of it
MALFORMED: list[tuple[Change, str]] = [
    (lambda text: text + "[", "jevcompat.toml: not TOML"),
    (lambda text: text.replace("wants =", "want ="), "want"),
    (lambda text: text.replace('version = "0.1.1"', "version = 0.1"), "expected str @ $.version"),
    (
        lambda text: text.replace('"errors.shape"', '"http.models"'),
        "the rule 'http.models' is there twice",
    ),
    (
        lambda text: text.replace('["models-endpoint"]', "[]"),
        "'http.models' needs a quoted sentence, a clause, a case",
    ),
    (lambda text: text.replace("models.exact", "models.exactly"), "'models.exactly' is no clause"),
    (
        lambda text: text.replace("models.exact", "systemone.score.spread"),
        "'http.models' rests on 'systemone.score.spread', our own choice",
    ),
]


@pytest.mark.parametrize(("change", "said"), MALFORMED, ids=[said for _, said in MALFORMED])
def test_a_malformed_table_is_refused(tmp_path: Path, change: Change, said: str) -> None:
    text = TABLE.read_text("utf-8")
    path = tmp_path / TABLE.name
    path.write_text(change(text), "utf-8")
    assert path.read_text("utf-8") != text
    with pytest.raises(SpecError) as caught:
        read_table(path, SPEC)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "jevcompat wrote no "),
        ("{", "is not JSON: "),
        ('{"results": []}', "is no report of jevcompat: "),
    ],
)
def test_a_report_that_is_none(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SuiteError) as caught:
        read_outcome(path)
    assert said in str(caught.value)


# Stands in for jevcompat: it "finds" what the file beside it holds.
PROGRAM = """#!{python}
import os, pathlib, sys
_, command, url, _, model, _, report = sys.argv
assert command == "test" and url.startswith("http://127.0.0.1:") and model == "{model}"
assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "*"
pathlib.Path(report).write_text(pathlib.Path(__file__).with_name("found.json").read_text())
"""


@trio_test
async def test_the_command_tells_by_its_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program, reports = tmp_path / "program", tmp_path / "reports"
    program.write_text(PROGRAM.format(python=sys.executable, model=MODEL))
    program.chmod(0o755)
    found = json.loads(CAPTURED.read_bytes())

    async def status(url: str) -> object:
        (tmp_path / "found.json").write_text(json.dumps(found))
        command = [url, "--program", str(program), "--reports", str(reports)]
        return await trio.to_thread.run_sync(
            lambda: app(command, result_action="return_value", exit_on_error=False)
        )

    async with serving(ReadableExecutor(), tokenizer=TOKENIZER, context=1024) as server:
        assert await status(server.url) == 0
        assert "6 rules are broken" in capfd.readouterr().out
        found["results"][0] |= {"status": "fail", "findings": [{"case": "preflight"}]}
        assert await status(server.url) == 1
        said = "http.endpoint is broken, and the document does not want it so\n"
        assert capfd.readouterr().err == said
    assert await status(server.url) == 1
    assert "no server answers" in capfd.readouterr().err
