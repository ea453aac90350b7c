"""Golden files: when one is compared, written, or left alone, and that each has its use."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from caldrix_conformance import plugin, run
from caldrix_conformance.capture import (
    Capture,
    CountTable,
    Kind,
    Origin,
    Tie,
    golden_text,
    read_golden_file,
)
from caldrix_conformance.events import parse_events
from caldrix_conformance.fingerprint import Fingerprint
from caldrix_conformance.goldens import orphans
from caldrix_conformance.options import Settings
from caldrix_conformance.resources import CASES, goldens_directory
from caldrix_conformance.verdicts import Status
from tests.mutants.faults.systemone_answers import ScoresTheLikeliest
from tests.mutants.toy import server as toy_server
from tests.mutants.toy.server import CHAT, MODEL, Toy, serving
from tests.mutants.toy.systemone import SystemOneToy
from tests.support.golden_runs import OF_A_MODEL, contents, reports, statuses

TOY = "qwen3-0.6b"
"""The name of the toy's fingerprint: it bears the name of the document's model."""
QUESTION = f"chat/{TOY}/question.json"
HELD = ("chat.response.text", "chat.response.exact", "chat.usage.tokenizer")

PATHS = sorted(goldens_directory("caldrix").rglob("*.json"))
GOLDENS = [path for path in PATHS if path.parent.name != "fingerprints"]


def named(path: Path) -> str:
    return path.relative_to(goldens_directory("caldrix")).as_posix()


@pytest.mark.parametrize("path", GOLDENS, ids=map(named, GOLDENS))
def test_a_golden_of_the_project(path: Path) -> None:
    """It is what its own raw answer says, is written as the suite would, and can be relied on."""
    golden = read_golden_file(path, named(path))
    assert path.read_text() == golden_text(golden)
    assert (golden.tie is Tie.FINGERPRINT) == (len(Path(named(path)).parts) == 3)
    if isinstance(golden, CountTable):
        assert len(golden.counts) >= 3
        return
    if golden.tie is Tie.FINGERPRINT:
        # The compiled kernels round activations to eight bits.
        assert golden.margin is not None
        assert golden.margin > 0.5
    if "chunks" in golden.canonical:
        events = parse_events(golden.response.raw)
        framed = "".join(f"data: {event.data}\n\n" for event in events).encode()
        assert golden.response.raw == framed
        assert events[-1].data == "[DONE]"


def test_the_fingerprints_of_the_project() -> None:
    paths = [path for path in PATHS if path not in GOLDENS]
    fingerprints = {path.stem: Fingerprint.read(path) for path in paths}
    assert {"smollm2-135m-instruct", "qwen3"} <= set(fingerprints)
    for path in paths:
        assert path.read_text() == fingerprints[path.stem].to_text()
    for name, fingerprint in fingerprints.items():
        sure = [each.is_sure for each in fingerprint.continuations.values()]
        assert all(sure), name
        others = [each for other, each in fingerprints.items() if other != name]
        assert all(fingerprint.prompt_tokens != other.prompt_tokens for other in others)


def test_every_golden_of_the_project_is_used() -> None:
    with serving(Toy()) as url:
        assert reports(url, only=["health.*"], write_goldens=True).faults == []


def changed(path: Path, **values: Any) -> None:
    golden = read_golden_file(path, "")
    assert isinstance(golden, Capture)
    path.write_text(golden_text(evolve(golden, **values)))


def test_a_missing_golden_fails_and_is_not_written(own_goldens: Path) -> None:
    with serving(Toy()) as url:
        seen = statuses(url)
    assert seen["chat.response.exact"] == (
        Status.FAIL,
        "there is no golden caldrix/chat/shape-answer: write it with `just goldens`",
    )
    assert seen["chat.response.text"] == (
        Status.FAIL,
        "there is no golden caldrix/chat/question of any model: write it with `just goldens`",
    )
    assert seen["chat.usage.tokenizer"][0] is Status.FAIL
    assert seen["chat.response.printed"][0] is Status.ERROR
    assert contents(own_goldens) == {}


class Shouting(Toy):
    """The same server with other words after the first, under the same name."""

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super().whole(path, body)
        if path == CHAT:
            message = answer["choices"][0]["message"]
            message["content"] = message["content"].upper()
            return answer | {"loud": True}
        return answer


def test_written_on_request_and_compared_afterwards(toy_goldens: Path) -> None:
    written = contents(toy_goldens)
    with serving(Toy()) as url:
        seen = statuses(url)
        # What still matches is left as it was, raw answers and margins included.
        statuses(url, write_goldens=True)
    for clause_id in (*OF_A_MODEL, "chat.response.exact"):
        assert seen[clause_id] == (Status.PASSED, ""), clause_id
    assert contents(toy_goldens) == written
    with serving(Shouting()) as url:
        seen = statuses(url)
    assert seen["chat.response.text"][1].startswith(
        f"golden caldrix/chat/{TOY}/question: answer.text is"
    )
    assert seen["chat.response.exact"] == (
        Status.FAIL,
        'golden caldrix/chat/shape-answer: answer.body.loud is not in the golden: "boolean"',
    )
    assert seen["chat.usage.tokenizer"][0] is Status.PASSED
    assert contents(toy_goldens) == written
    with serving(Shouting()) as url:
        statuses(url, write_goldens=True)
    rewritten = read_golden_file(toy_goldens / "chat" / TOY / "question.json", "")
    assert isinstance(rewritten, Capture)
    assert rewritten.margin is None
    assert rewritten.canonical["body"]["loud"] is True


class OfAnotherModel(SystemOneToy):
    """The same arithmetic on other probabilities."""

    def softmax(self, logits: Sequence[float]) -> list[float]:
        return super().softmax([-logit for logit in logits])


def test_arithmetic_holds_on_any_model(own_goldens: Path) -> None:
    clauses = ("systemone.answer.captured", "systemone.answer.exact", "systemone.refusal.object")
    with serving(SystemOneToy()) as url:
        assert set(statuses(url, only=clauses, write_goldens=True).values()) == {
            (Status.PASSED, "")
        }
    written = contents(own_goldens)
    kinds = [read_golden_file(path, "").kind for path in written]
    assert kinds.count(Kind.ARITHMETIC) == 4
    assert kinds.count(Kind.SHAPE) == 2
    with serving(OfAnotherModel()) as url:
        assert set(statuses(url, only=clauses, write_goldens=True).values()) == {
            (Status.PASSED, "")
        }
    assert contents(own_goldens) == written
    with serving(ScoresTheLikeliest()) as url:
        status, told = statuses(url, only=clauses)["systemone.answer.captured"]
    assert status is Status.FAIL
    assert 'in the golden "<as its probabilities say>"' in told


class Hesitating(Toy):
    """Another token than the right one in one answer, as rounding may have it."""

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super().whole(path, body)
        if path == CHAT and "stop" not in body and len(body["messages"]) == 1:
            answer["choices"][0]["message"]["content"] += "!"
        return answer


class Miscounting(Hesitating):
    """That, and a token too many in the prompt, which no rounding explains."""

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super().whole(path, body)
        answer["usage"]["prompt_tokens"] += path == CHAT
        return answer


def test_another_text_of_near_tokens_is_no_fault(toy_goldens: Path) -> None:
    changed(toy_goldens / QUESTION, margin=0.04)
    with serving(Hesitating()) as url:
        seen = statuses(url, only=["chat.response.text"])
    # The other goldens of the clause are asserted, and right.
    assert seen == {"chat.response.text": (Status.PASSED, "")}
    with serving(Miscounting()) as url:
        status, told = statuses(url, only=["chat.response.text"])["chat.response.text"]
    assert status is Status.FAIL
    name = QUESTION.removesuffix(".json")
    assert told == f"golden caldrix/{name}: answer.prompt_tokens is 18, in the golden 17"


def test_a_text_without_a_margin_is_not_asserted(toy_goldens: Path) -> None:
    for path in (toy_goldens / "chat" / TOY).glob("*.json"):
        if not path.stem.startswith("counts"):
            changed(path, margin=None)

    class OtherWords(Shouting):
        def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = super().whole(path, body)
            answer.pop("loud", None)
            return answer

    with serving(OtherWords()) as url:
        status, reason = statuses(url)["chat.response.text"]
    assert status is Status.UNSUPPORTED
    assert reason == (
        f"golden caldrix/{QUESTION[:-5]}: the text is not asserted, since the gap between its two "
        "best tokens is unknown, and not 0.05 or more; shape and prompt tokens are right"
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"),
    [
        (QUESTION, '"kind"', '"kin"', "can't be read: its kind is missing"),
        (QUESTION, '"status": 200', '"status": 201', "is not what its own raw answer says"),
        ("chat/shape-answer.json", "assistant", "asistant", "chat/shape-answer was edited"),
        (f"fingerprints/{TOY}.json", '"model"', '"moddel"', "can't be read"),
        (f"chat/{TOY}/counts.json", '"tokens"', '"tokns"', "can't be read"),
    ],
)
def test_a_file_that_is_wrong_is_the_suite_s_own_fault(
    toy_goldens: Path, name: str, old: str, new: str, complaint: str
) -> None:
    path = toy_goldens / name
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    with serving(Toy()) as url:
        seen = statuses(url, only=HELD)
    errors = [seen for status, seen in seen.values() if status is Status.ERROR]
    assert errors
    assert all(complaint in error for error in errors)
    if path.parent.name != "fingerprints":
        # Written anew, it is whole again.
        with serving(Toy()) as url:
            statuses(url, write_goldens=True)
        assert path.read_text() == golden_text(read_golden_file(path, ""))


def test_a_folder_without_a_fingerprint_is_the_suite_s_own_fault(toy_goldens: Path) -> None:
    (toy_goldens / "fingerprints" / f"{TOY}.json").unlink()
    with serving(Toy()) as url:
        seen = statuses(url, only=["chat.response.text"])
    assert seen["chat.response.text"] == (
        Status.ERROR,
        f"GoldenError: there are goldens of {TOY}, and no fingerprint of it",
    )


def test_a_folder_without_a_fingerprint_hides_no_other(toy_goldens: Path) -> None:
    (toy_goldens / "chat" / "another").mkdir()
    shutil.copy(toy_goldens / QUESTION, toy_goldens / "chat" / "another")
    with serving(Toy()) as url:
        seen = statuses(url, only=["chat.response.text"])
    assert seen["chat.response.text"] == (Status.PASSED, "")


@pytest.fixture
def one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the only case there is, which uses no golden."""
    cases = tmp_path / "cases"
    path = cases / "caldrix" / "test_one.py"
    path.parent.mkdir(parents=True)
    shutil.copy(CASES / "pytest.toml", cases)
    path.write_text(
        "from caldrix_conformance.marks import checks\n\n\n"
        "@checks('health.healthz')\ndef test_it(): pass\n"
    )
    monkeypatch.setattr(run, "CASES", cases)
    return path


@pytest.mark.parametrize("checkout", [True, False])
def test_what_no_case_uses_is_a_fault_of_a_full_run(
    own_goldens: Path, one_case: Path, monkeypatch: pytest.MonkeyPatch, checkout: bool
) -> None:
    monkeypatch.setattr(plugin, "in_checkout", lambda: checkout)
    (own_goldens / "chat" / "nosuchmodel").mkdir(parents=True)
    stray = own_goldens / "chat" / "nosuchmodel" / "x.json"
    with serving(Toy()) as url:
        report = reports(url, only=[])
        assert report.faults == []
        assert evolve(report, verdicts=()).exit_status(strict=False) == 0
        stray.write_text("{}")
        report = reports(url, only=[])
        assert report.faults == [
            "no case uses the golden caldrix/chat/nosuchmodel/x.json; delete it, or write its case"
        ]
        assert evolve(report, verdicts=()).exit_status(strict=False) == 1
        # What a part of the cases leaves unused says nothing.
        assert reports(url, only=["health.*"]).faults == []


def test_what_a_module_uses_that_can_t_be_imported_is_no_orphan(
    own_goldens: Path, one_case: Path
) -> None:
    (own_goldens / "chat").mkdir()
    (own_goldens / "chat" / "x.json").write_text("{}")
    one_case.with_name("test_two.py").write_text("import no_such_module\n")
    with serving(Toy()) as url:
        (fault,) = reports(url, only=[]).faults
    assert "can't be collected" in fault


def test_a_contract_need_not_have_goldens() -> None:
    assert list(orphans("no-such-contract", ())) == []


def test_what_no_case_uses_is_told_when_goldens_are_written(
    toy_goldens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = toy_goldens / "chat" / "of-old.json"
    stray.write_text("{}")
    settings = Settings(url="", only=("chat.response.exact",), write_goldens=True)
    with serving(Toy()) as url:
        assert run.run(evolve(settings, url=url)) == 1
        told = " ".join(capsys.readouterr().out.split())
        assert "no case uses the golden caldrix/chat/of-old.json; delete it, or write its" in told
        assert run.run(evolve(settings, url=url, write_goldens=False)) == 0
    assert stray.read_text() == "{}"


def test_orphans(toy_goldens: Path) -> None:
    names = {"chat/question", "chat/shape-answer"}
    for path in contents(toy_goldens):
        relative = path.relative_to(toy_goldens)
        if f"{relative.parts[0]}/{relative.stem}" not in names and "fingerprints" not in str(path):
            path.unlink()
    assert list(orphans("caldrix", names)) == []
    (toy_goldens / "chat" / "notes.txt").write_text("")
    (toy_goldens / "chat" / ".DS_Store").write_text("")
    (toy_goldens / "fingerprints" / "notes.txt").write_text("")
    (toy_goldens / "chat" / "another").mkdir()
    (toy_goldens / QUESTION).rename(toy_goldens / "chat" / "another" / "question.json")
    assert list(orphans("caldrix", names)) == [
        "the golden caldrix/chat/another/question.json is of another, which has no fingerprint; "
        "bring that back, or delete the golden",
        "no case uses the golden caldrix/chat/notes.txt; delete it, or write its case",
        "no case uses the golden caldrix/fingerprints/notes.txt; delete it, or write its case",
        f"no golden is of the fingerprint caldrix/fingerprints/{TOY}.json; delete it",
    ]


def test_printed_exchanges_are_never_rewritten() -> None:
    path = goldens_directory("caldrix") / "chat" / "document-capital-of-france.json"
    stored = path.read_text()
    golden = read_golden_file(path, "")
    assert isinstance(golden, Capture)
    assert (golden.origin, golden.model) == (Origin.DOCUMENT, MODEL)
    with serving(Shouting()) as url:
        report = reports(url, only=["chat.response.printed"], write_goldens=True)
    assert [verdict.status for verdict in report.verdicts] == [Status.FAIL]
    assert path.read_text() == stored


def test_printed_exchanges_are_of_the_model_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_server, "MODEL", "what/ever")
    with serving(Toy()) as url:
        seen = statuses(url, only=["*.printed"])
    assert seen["chat.response.printed"] == (
        Status.UNSUPPORTED,
        f"{MODEL} gave that answer, and the target's is what/ever",
    )
    # What no model has a say in is printed for all.
    assert seen["models.printed"][0] is Status.PASSED


def test_every_printed_exchange_is_a_golden() -> None:
    """Of the one about a picture the document cuts the picture, so another stands in its place."""
    printed = {
        named(path)
        for path in GOLDENS
        if isinstance(golden := read_golden_file(path, ""), Capture)
        and golden.origin is Origin.DOCUMENT
    }
    assert printed >= {
        "chat/document-capital-of-france.json",
        "streaming/document-capital-of-france.json",
        "completions/document-capital-of-france.json",
        "models/document-list.json",
        "sampling/document-top-p.json",
        "systemone/document-customer-message.json",
        "systemone/document-box.json",
        "images/document-describe.json",
    }


def test_goldens_are_written_in_a_checkout_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugin, "in_checkout", lambda: False)
    with serving(Toy()) as url:
        assert run.run(Settings(url=url, write_goldens=True)) == 2
    assert "goldens are kept in a checkout" in capsys.readouterr().err


def test_counts_and_texts_are_of_many_kinds() -> None:
    kinds = [read_golden_file(path, "").kind for path in GOLDENS]
    assert kinds.count(Kind.TEXT) - kinds.count(Kind.SHAPE) > 8
    counts = [
        len(golden.counts)
        for path in GOLDENS
        if isinstance(golden := read_golden_file(path, ""), CountTable)
    ]
    assert len(counts) == 6
    assert sum(counts) > 160
