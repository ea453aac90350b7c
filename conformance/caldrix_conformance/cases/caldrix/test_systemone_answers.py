"""Answers of /v1/systemone: their members, what their numbers mean, and their usage."""

from __future__ import annotations

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.contracts.caldrix.decisions import (
    Decisions,
    nearly,
    same_readings,
    spaces_between,
)
from caldrix_conformance.contracts.caldrix.questions import (
    CHOICE,
    NOUL,
    SCORE,
    STATE,
    ask,
    decide,
    decide_one,
)
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.target import Target

# In no order that a map of names might fall into.
QUESTIONS = {"urgency": SCORE, "10": CHOICE, "late": NOUL, "2": NOUL}
KINDS = {"urgency": "score", "10": "choice", "late": "noul", "2": "noul"}

MEMBERS = {
    "choice": ["type", "choice", "probabilities", "confidence"],
    "score": ["type", "score", "legend", "probabilities", "confidence"],
    "noul": ["type", "noul"],
}
"""Of each answer, as printed."""


@pytest.fixture(scope="session")
def answer(target: Target) -> Answer:
    return ask(target, QUESTIONS)


@pytest.fixture(scope="session")
def decisions(answer: Answer) -> Decisions:
    return Decisions(answer)


@checks("systemone.answer.members")
def test_members(decisions: Decisions) -> None:
    names = {"model", "answers", "usage"}
    assert names <= set(decisions.body), f"the body has {list(decisions.body)}"
    for name, kind in KINDS.items():
        seen = decisions.of(name)
        assert set(MEMBERS[kind]) <= set(seen), f"the answer to a {kind} has {list(seen)}"


@checks("systemone.answer.exact")
def test_no_other_members(decisions: Decisions) -> None:
    assert set(decisions.body) == {"model", "answers", "usage"}, f"{list(decisions.body)}"
    usage = decisions.usage
    assert set(usage) == {"input_tokens", "output_tokens"}, f"usage is {usage}"
    for name, kind in KINDS.items():
        seen = decisions.of(name)
        assert set(seen) == set(MEMBERS[kind]), f"the answer to a {kind} has {list(seen)}"


@checks("systemone.answer.exact")
@captured("systemone/shape-answer")
def test_shape(target: Target, golden: Golden) -> None:
    golden.shape(ask(target, {"choice": CHOICE, "score": SCORE, "noul": NOUL}))


@checks("systemone.answer.order")
def test_order_of_members(decisions: Decisions) -> None:
    seen = list(decisions.body)
    assert seen == ["model", "answers", "usage"], f"the members come as {seen}"
    for name, kind in KINDS.items():
        seen = list(decisions.of(name))
        assert seen == MEMBERS[kind], f"those of a {kind} come as {seen}"
    seen = list(decisions.usage)
    assert seen == ["input_tokens", "output_tokens"], f"those of usage come as {seen}"


@checks("systemone.answer.media-type")
def test_media_type(answer: Answer) -> None:
    seen = answer.expect(200).media_type
    assert seen == "application/json", f"the media type is {seen!r}"


@checks("systemone.answer.compact")
def test_compact(answer: Answer) -> None:
    spare = spaces_between(answer.expect(200).body)
    assert not spare, f"{spare} spaces and line breaks between the parts; {answer.seen}"


@checks("systemone.answer.model")
def test_model(decisions: Decisions, target: Target) -> None:
    seen = decisions.body.get("model")
    assert seen == target.model, f"model is {seen!r}, wanted {target.model!r}"


@checks("systemone.answer.names")
def test_names(decisions: Decisions) -> None:
    assert set(decisions.answers) == set(QUESTIONS), f"answers to {list(decisions.answers)}"


@checks("systemone.answer.names-order")
def test_order_of_names(decisions: Decisions) -> None:
    seen = list(decisions.answers)
    assert seen == list(QUESTIONS), f"asked as {list(QUESTIONS)}, answered as {seen}"


@checks("systemone.answer.any-name")
def test_any_name(target: Target) -> None:
    name = "Is it late? Ja/нет 🙂"
    seen = list(decide(target, {name: NOUL}).answers)
    assert seen == [name], f"answers to {seen}"


@checks("systemone.answer.type")
def test_type(decisions: Decisions) -> None:
    seen = {name: decisions.of(name).get("type") for name in QUESTIONS}
    assert seen == KINDS, f"the answers' types are {seen}, wanted {KINDS}"


@checks("systemone.answer.repeated")
def test_repeated(decisions: Decisions, target: Target) -> None:
    again = decide(target, QUESTIONS)
    assert same_readings(decisions, again), f"{decisions.readings}, then {again.readings}"


@checks("systemone.answer.alone")
@pytest.mark.parametrize("name", ["10", "late", "urgency"])
def test_alone(decisions: Decisions, target: Target, name: str) -> None:
    alone = decide(target, {name: QUESTIONS[name]})
    seen, wanted = alone.reading(name), decisions.reading(name)
    assert nearly(seen, wanted), f"{list(seen)} alone, {list(wanted)} beside others"


@checks("systemone.answer.printed")
@captured("systemone/document-customer-message")
def test_printed(golden: Golden) -> None:
    golden.replay()


@checks("systemone.usage.output")
def test_output_tokens(decisions: Decisions) -> None:
    seen = decisions.output_tokens
    assert type(seen) is int, f"output_tokens is {seen!r}"
    assert seen == 0, f"output_tokens is {seen!r}"


@checks("systemone.usage.input")
def test_input_tokens(decisions: Decisions) -> None:
    assert decisions.input_tokens > 0, f"input_tokens is {decisions.input_tokens}"


@checks("systemone.usage.state")
def test_state_counts(target: Target) -> None:
    short, long = (decide_one(target, NOUL, state=STATE * times).input_tokens for times in (1, 9))
    assert long >= short + 8 * 4, f"{short} input tokens, {long} for a state nine times as long"


@checks("systemone.usage.sum")
def test_sum_of_prompts(decisions: Decisions, target: Target) -> None:
    alone = [decide(target, {name: QUESTIONS[name]}).input_tokens for name in QUESTIONS]
    seen = decisions.input_tokens
    assert seen == sum(alone), f"{seen} input tokens together, {alone} one by one"
