"""Knowing the target's model: what its goldens judge then, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from caldrix_conformance.verdicts import Status
from tests.mutants.toy import server as toy_server
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, COMPLETIONS, Toy, serving
from tests.support.golden_runs import OF_A_MODEL, contents, statuses

TOY = "qwen3-0.6b"
"""The name of the toy's fingerprint: it bears the name of the document's model."""
UNSURE = "the target isn't a model this was captured from; qwen3-0.6b: "


def test_a_model_is_known_under_another_name(
    toy_goldens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = contents(toy_goldens)
    monkeypatch.setattr(toy_server, "MODEL", "what/ever")
    with serving(Toy()) as url:
        seen = statuses(url)
        statuses(url, write_goldens=True)
    assert {seen[clause_id] for clause_id in OF_A_MODEL} == {(Status.PASSED, "")}
    assert contents(toy_goldens) == written


class LosesATab(Toy):
    def prompt(self, path: str, body: dict[str, Any]) -> Prompt:
        prompt = super().prompt(path, body)
        return evolve(prompt, counted=prompt.tokens - prompt.text.count("\t"))


class CutsStreamsShort(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> dict[str, Any]:
        return super().choice(path, text.strip(), reason)


@pytest.mark.parametrize(
    ("toy", "broken"),
    [
        (LosesATab, {"chat.usage.tokenizer", "completions.usage.tokenizer"}),
        (CutsStreamsShort, {"streaming.text.captured", "completions.streaming.captured"}),
    ],
)
@pytest.mark.usefixtures("toy_goldens")
def test_what_the_right_model_does_wrong_is_seen(toy: type[Toy], broken: set[str]) -> None:
    with serving(toy()) as url:
        seen = statuses(url, only=OF_A_MODEL)
    assert {name for name, (status, _) in seen.items() if status is Status.FAIL} == broken
    assert {status for status, _ in seen.values()} == {Status.FAIL, Status.PASSED}


class OtherWeights(Toy):
    """The same words for the same numbers, and other ones for most prompts."""

    def prompt(self, path: str, body: dict[str, Any]) -> Prompt:
        prompt = super().prompt(path, body)
        return evolve(prompt, ids=(*prompt.ids[::-1], 7), text="", counted=prompt.tokens)


class OtherTokenizer(Toy):
    def prompt(self, path: str, body: dict[str, Any]) -> Prompt:
        prompt = super().prompt(path, body)
        return evolve(prompt, counted=prompt.tokens + len(prompt.text) // 20)


class OtherTemplate(Toy):
    def prompt(self, path: str, body: dict[str, Any]) -> Prompt:
        prompt = super().prompt(path, body)
        return evolve(prompt, counted=prompt.tokens + 5) if path == CHAT else prompt


class ChatAlone(Toy):
    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == COMPLETIONS:
            raise Refused(404, "not here")
        return super().post(path, body)


class NeverCounts(Toy):
    def usage(self, prompt: Prompt, ids: list[int]) -> dict[str, Any]:
        return {}


@pytest.mark.usefixtures("toy_goldens")
def test_other_weights_judge_no_text_and_still_count() -> None:
    with serving(OtherWeights()) as url:
        seen = statuses(url)
    status, reason = seen["chat.response.text"]
    assert status is Status.UNSUPPORTED
    assert reason.startswith(f"{UNSURE}'The opposite of hot is' is followed by ")
    assert "\n" not in reason
    assert (
        seen["chat.usage.tokenizer"]
        == seen["completions.usage.tokenizer"]
        == (
            Status.PASSED,
            "",
        )
    )


@pytest.mark.usefixtures("toy_goldens")
def test_another_tokenizer_judges_nothing() -> None:
    with serving(OtherTokenizer()) as url:
        seen = statuses(url, only=OF_A_MODEL)
    assert {status for status, _ in seen.values()} == {Status.UNSUPPORTED}
    told = "The quick brown fox jumps over the lazy dog."
    assert seen["completions.usage.tokenizer"][1] == (
        f"{UNSURE}{told!r} as a prompt is 10 tokens there and 12 here"
    )


@pytest.mark.usefixtures("toy_goldens")
def test_another_template_judges_no_counts_of_messages() -> None:
    with serving(OtherTemplate()) as url:
        seen = statuses(url, only=OF_A_MODEL)
    assert seen["chat.usage.tokenizer"] == (
        Status.UNSUPPORTED,
        f"{UNSURE}'Hello' as a message is 11 tokens there and 16 here",
    )
    assert seen["completions.usage.tokenizer"][0] is Status.PASSED
    # The weights are the model's own, and so should be the template.
    assert seen["chat.response.text"][0] is Status.FAIL


@pytest.mark.usefixtures("toy_goldens")
def test_without_completions_no_weights_are_known() -> None:
    with serving(ChatAlone()) as url:
        seen = statuses(url, only=OF_A_MODEL)
    assert (
        seen["chat.response.text"]
        == seen["streaming.text.captured"]
        == (
            Status.UNSUPPORTED,
            f"{UNSURE}the target lacks /v1/completions, where models are told apart",
        )
    )
    assert seen["chat.usage.tokenizer"][0] is Status.PASSED


@pytest.mark.usefixtures("toy_goldens")
def test_a_target_that_tells_nothing_is_no_known_model() -> None:
    with serving(NeverCounts()) as url:
        seen = statuses(url, only=OF_A_MODEL)
        writing = statuses(url, only=OF_A_MODEL, write_goldens=True)
    assert {status for status, _ in seen.values()} == {Status.UNSUPPORTED}
    assert seen["chat.response.text"][1].startswith(f"{UNSURE}the target's model can't be told: no")
    assert {status for status, _ in writing.values()} == {Status.ERROR}
    assert "goldens can't be written from this target" in writing["chat.response.text"][1]


class Counted(Toy):
    """Counts how often it is asked each thing."""

    asked: list[str]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(json.dumps([path, body]))
        return super().post(path, body)


@pytest.mark.usefixtures("toy_goldens")
def test_a_target_is_asked_once_and_only_where_it_matters() -> None:
    toy = Counted()
    toy.asked = []
    with serving(toy) as url:
        statuses(url, only=["health.*", "chat.response.exact"])
        before = len(toy.asked)
        assert not any("King and" in request for request in toy.asked)
        toy.asked.clear()
        statuses(url, only=OF_A_MODEL)
    probes = [request for request in toy.asked if "King and" in request]
    assert len(probes) == 1
    assert before < 12


def test_weights_that_no_margin_vouches_for_are_not_known(toy_goldens: Path) -> None:
    path = toy_goldens / "fingerprints" / f"{TOY}.json"
    path.write_text(path.read_text().replace('"margin": 9.0', '"margin": 0.9'))
    with serving(Toy()) as url:
        seen = statuses(url, only=OF_A_MODEL)
    assert seen["chat.response.text"] == (
        Status.UNSUPPORTED,
        f"{UNSURE}too little is known of its weights",
    )
    assert seen["chat.usage.tokenizer"][0] is Status.PASSED
