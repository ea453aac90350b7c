"""Goldens: the canonical form, and when a file is compared, written, or left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix_conformance import goldens, plugin, run
from caldrix_conformance.answers import Answer
from caldrix_conformance.canonical import canonical_answer, canonical_shape, first_difference
from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.errors import GoldenError
from caldrix_conformance.goldens import Capture, Kind, Origin
from caldrix_conformance.resources import goldens_directory
from caldrix_conformance.run import Settings, judge
from caldrix_conformance.verdicts import Status
from tests.mutants.toy.server import MODEL, Toy, serving

CLAUSES = ["chat.response.exact", "chat.response.text", "chat.response.printed"]


def streamed(pieces: list[str], *, id: str = "a", created: int = 1) -> Answer:
    frame = {"id": id, "created": created, "model": "m", "object": "chat.completion.chunk"}
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": piece}, "finish_reason": None, "token_ids": [len(piece)]}
        for piece in pieces
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [json.dumps(frame | {"choices": [choice]}) for choice in choices]
    body = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]"))
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return Answer("POST", CHAT.path, {"model": "m"}, 200, headers, body.encode())


@given(st.lists(st.text(), min_size=1), st.text(), st.integers())
def test_how_a_text_was_cut_makes_no_difference(
    pieces: list[str], other_id: str, other_time: int
) -> None:
    form = canonical_answer(streamed(pieces, id=other_id, created=other_time))
    first, last = form["chunks"]
    assert first["choices"][0]["delta"] == {"content": "".join(pieces)}
    assert first["choices"][0]["token_ids"] == [len(piece) for piece in pieces]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert (first["id"], first["created"]) == ("<id>", "<created>")
    assert form["content_type"] == "text/event-stream"


def test_a_shape_holds_types_alone() -> None:
    body = {"b": [1, 2, "x", {"d": None}], "a": {"c": True, "e": 0.5}, "id": "7"}
    answer = Answer("GET", "/", None, 200, {"content-type": "application/json"}, b"")
    answer.body = json.dumps(body).encode()
    assert canonical_shape(answer)["body"] == {
        "a": {"c": "boolean", "e": "number"},
        "b": ["integer", "string", {"d": "null"}],
        "id": "string",
    }


@pytest.mark.parametrize(
    ("stored", "seen", "difference"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b is 3, in the golden 2"),
        ({"a": 1}, {}, "a is missing"),
        ({}, {"a": 1}, "a is not in the golden: 1"),
        ({"a": [1]}, {"a": []}, "a has 0 items, in the golden 1"),
        # Python takes true for 1 and 1.0.
        ({"a": 1}, {"a": True}, "a is true, in the golden 1"),
        ({"a": 1}, {"a": 1.0}, "a is 1.0, in the golden 1"),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, None),
    ],
)
def test_first_difference(stored: Any, seen: Any, difference: str | None) -> None:
    assert first_difference(stored, seen) == difference


def test_a_capture_survives_its_file() -> None:
    capture = Capture.of(streamed(["a", "b"]), Kind.TEXT, served="m", tied=True)
    assert Capture.from_text(capture.to_text(), "x") == capture
    with pytest.raises(GoldenError, match="the golden x can't be read"):
        Capture.from_text("{}", "x")


def test_every_golden_is_as_its_own_answer_reads() -> None:
    """The canonical form in each file is the one that its raw answer has today."""
    paths = sorted(goldens_directory("caldrix").rglob("*.json"))
    assert paths
    for path in paths:
        stored = Capture.from_text(path.read_text(), path.stem)
        body = "\n".join(stored.response.body).encode()
        request = stored.request
        served = stored.model or "Qwen/Qwen3-0.6B"
        answer = Answer(
            request.method,
            request.path,
            request.body,
            stored.response.status,
            stored.response.headers,
            body,
        )
        again = Capture.of(answer, stored.kind, served=served, tied=stored.model is not None)
        assert again.canonical == stored.canonical, path


@pytest.fixture
def own_goldens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the project's goldens."""
    monkeypatch.setattr(goldens, "goldens_directory", lambda contract: tmp_path / contract)
    return tmp_path / "caldrix"


def statuses(url: str, **settings: Any) -> dict[str, tuple[Status, str]]:
    report = judge(Settings(url=url, only=CLAUSES, **settings))
    assert report is not None
    return {v.clause.id: (v.status, v.seen) for v in report.verdicts}


def test_a_missing_golden_fails_and_is_not_written(own_goldens: Path) -> None:
    with serving(Toy()) as url:
        seen = statuses(url)
    assert seen["chat.response.exact"] == (
        Status.FAIL,
        "there is no golden caldrix/chat/shape-answer: write it with `just goldens`",
    )
    assert seen["chat.response.printed"][0] is Status.ERROR
    assert not own_goldens.exists()


class Shouting(Toy):
    """The same server with another model's words, under the same name."""

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super().whole(path, body)
        message = answer["choices"][0]["message"]
        message["content"] = message["content"].upper()
        return answer | {"loud": True}


def test_written_on_request_and_compared_afterwards(own_goldens: Path) -> None:
    path = own_goldens / "chat" / "text-capital-of-japan.json"
    with serving(Toy()) as url:
        statuses(url, write_goldens=True)
        assert Capture.from_text(path.read_text(), "").model == MODEL
        written = path.read_text()
        seen = statuses(url)
        # What still matches is left as it was, raw answer included.
        statuses(url, write_goldens=True)
    assert seen["chat.response.text"] == seen["chat.response.exact"] == (Status.PASSED, "")
    assert path.read_text() == written
    with serving(Shouting()) as url:
        seen = statuses(url)
    assert seen["chat.response.text"][1].startswith(
        "golden caldrix/chat/text-capital-of-japan: canonical: body.choices[0].message.content is"
    )
    assert seen["chat.response.exact"] == (
        Status.FAIL,
        'golden caldrix/chat/shape-answer: canonical: body.loud is not in the golden: "boolean"',
    )
    assert path.read_text() == written


def test_another_model_s_text_judges_nothing_and_stays(own_goldens: Path) -> None:
    path = own_goldens / "chat" / "text-capital-of-japan.json"
    with serving(Toy()) as url:
        statuses(url, write_goldens=True)
        text = path.read_text().replace(MODEL, "another/model")
        path.write_text(text)
        for writing in (False, True):
            seen = statuses(url, write_goldens=writing)
            assert seen["chat.response.text"] == (
                Status.UNSUPPORTED,
                "captured from another/model",
            )
    assert path.read_text() == text


def test_printed_exchanges_are_never_rewritten() -> None:
    path = goldens_directory("caldrix") / "chat" / "document-capital-of-france.json"
    stored = path.read_text()
    assert Capture.from_text(stored, "").origin is Origin.DOCUMENT
    with serving(Shouting()) as url:
        report = judge(Settings(url=url, only=["chat.response.printed"], write_goldens=True))
    assert report is not None
    assert [verdict.status for verdict in report.verdicts] == [Status.FAIL]
    assert path.read_text() == stored


def test_goldens_are_written_in_a_checkout_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugin, "in_checkout", lambda: False)
    with serving(Toy()) as url:
        assert run.run(Settings(url=url, write_goldens=True)) == 2
    assert "goldens are kept in a checkout" in capsys.readouterr().err
