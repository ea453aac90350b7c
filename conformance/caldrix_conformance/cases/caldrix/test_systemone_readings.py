"""What the numbers in the answers of /v1/systemone say, and how they follow from each other."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.contracts.caldrix.decisions import (
    Decisions,
    Score,
    choice_confidence,
    expect_close,
    expected_score,
    likeliest,
    read_exactly,
    score_confidence,
    sum_tolerance,
)
from caldrix_conformance.contracts.caldrix.questions import (
    CHOICE,
    NOUL,
    SCORE,
    STATE,
    but,
    decide,
    decide_one,
    decide_text,
    levels,
    options,
)
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target


@pytest.fixture(scope="session")
def decisions(target: Target) -> Decisions:
    return decide(target, {"choice": CHOICE, "score": SCORE, "noul": NOUL})


TEN = but(CHOICE, criteria=options(10))
"""Enough options for two to be equally likely where logits are coarse."""


@pytest.fixture(scope="session")
def of_ten(target: Target) -> Decisions:
    answered = decide(target, {"q": TEN, "again": but(TEN, instructions="Who decides?")})
    if Capability.DECIDER in target.capabilities and answered.answer.status == 400:
        pytest.skip("the config's max_options is below ten")
    return answered


def sums(decisions: Decisions, name: str) -> None:
    """Check that the probabilities of one answer are some, and all there are."""
    probabilities = list(decisions.probabilities(name).values())
    assert min(probabilities) >= 0, f"the least probability is {min(probabilities)!r}"
    total = sum(probabilities)
    assert abs(total - 1) <= sum_tolerance(len(probabilities)), f"their sum is {total!r}"


@checks("systemone.choice.options")
def test_options(decisions: Decisions) -> None:
    seen = list(decisions.probabilities("choice"))
    assert set(seen) == set(CHOICE["criteria"]), f"probabilities of {seen}"


@checks("systemone.choice.any-option")
def test_any_option(target: Target) -> None:
    names = ["Ja/нет", "é b", "0", "🙂"]
    criteria = dict.fromkeys(names, "so")
    choice = decide_one(target, but(CHOICE, criteria=criteria)).choice("q")
    assert set(choice.probabilities) == set(names), f"probabilities of {set(choice.probabilities)}"
    assert choice.choice in names, f"the choice is {choice.choice!r}"


@checks("systemone.choice.order")
def test_order_of_options(decisions: Decisions) -> None:
    seen = list(decisions.probabilities("choice"))
    wanted = list(CHOICE["criteria"])
    assert seen == wanted, f"options asked as {wanted}, answered as {seen}"


@checks("systemone.choice.sum")
def test_sum(decisions: Decisions, of_ten: Decisions) -> None:
    sums(decisions, "choice")
    sums(of_ten, "q")


@checks("systemone.choice.best")
def test_best(decisions: Decisions, of_ten: Decisions) -> None:
    for choice in (decisions.choice("choice"), of_ten.choice("q"), of_ten.choice("again")):
        assert choice.choice in choice.probabilities, f"the choice is {choice.choice!r}"
        most = max(choice.probabilities.values())
        seen = choice.probabilities[choice.choice]
        assert seen == most, f"chosen with {seen!r}, while another has {most!r}"


@checks("systemone.choice.tie")
def test_tie(decisions: Decisions, of_ten: Decisions) -> None:
    asked = [(decisions.choice("choice"), CHOICE), (of_ten.choice("q"), TEN)]
    asked.append((of_ten.choice("again"), TEN))
    for choice, question in asked:
        names = list(question["criteria"])
        probabilities = [choice.probabilities.get(name, 0.0) for name in names]
        first = names[likeliest(probabilities)[0]]
        assert choice.choice == first, f"{choice.choice!r} before {first!r} of {probabilities}"


@checks("systemone.choice.confidence")
def test_choice_confidence(decisions: Decisions, of_ten: Decisions) -> None:
    for choice in (decisions.choice("choice"), of_ten.choice("q"), of_ten.choice("again")):
        wanted = choice_confidence(list(choice.probabilities.values()))
        expect_close("the confidence", choice.confidence, wanted)


@checks("systemone.choice.one")
def test_one_option(target: Target) -> None:
    choice = decide_one(target, but(CHOICE, criteria={"only": None})).choice("q")
    seen = choice.choice, choice.probabilities, choice.confidence
    assert seen == ("only", {"only": 1.0}, 1.0), f"the choice of one option is {seen}"


@checks("systemone.choice.labels")
def test_labels_follow_order(decisions: Decisions, target: Target) -> None:
    backwards = dict(reversed(CHOICE["criteria"].items()))
    there = decisions.probabilities("choice")
    back = decide_one(target, but(CHOICE, criteria=backwards)).probabilities("q")
    assert any(abs(there[name] - back.get(name, 0.0)) > 1e-6 for name in there), (
        f"{there} in either order"
    )


@checks("systemone.choice.described")
def test_descriptions_are_read(decisions: Decisions, target: Target) -> None:
    criteria = dict.fromkeys(CHOICE["criteria"])
    bare = decide_one(target, but(CHOICE, criteria=criteria))
    full = decide_one(target, CHOICE)
    seen = bare.input_tokens, full.input_tokens
    assert seen[0] < seen[1], f"{seen[0]} input tokens, {seen[1]} with two descriptions"


@checks("systemone.score.indexes")
def test_indexes(decisions: Decisions) -> None:
    seen = list(decisions.probabilities("score"))
    assert seen == ["0", "1", "2"], f"probabilities of the levels {seen}"


@pytest.fixture(scope="session")
def ten_levels(target: Target) -> Decisions:
    return decide(
        target,
        {
            "q": but(SCORE, criteria=levels(10)),
            "again": but(SCORE, instructions="How far did it go?", criteria=levels(10)),
        },
    )


@checks("systemone.score.sum")
def test_score_sum(decisions: Decisions, ten_levels: Decisions) -> None:
    sums(decisions, "score")
    sums(ten_levels, "q")


@checks("systemone.score.expected")
def test_expected_score(decisions: Decisions, ten_levels: Decisions) -> None:
    for score in (decisions.score("score"), ten_levels.score("q"), ten_levels.score("again")):
        expect_close("the score", score.score, expected_score(score.probabilities))


SURE = "How sure is it that two and two are four?"
GRADES = ["impossible", "possible", "certain"]


@checks("systemone.score.unclipped")
@pytest.mark.parametrize("state", [STATE, "Two and two are four. That is certain."])
def test_score_of_the_highest_level(target: Target, state: str) -> None:
    question = but(SCORE, instructions=SURE, criteria=GRADES)
    score = decide_one(target, question, state=state).score("q")
    expect_close("the score", score.score, expected_score(score.probabilities))


def expect_confidence(score: Score) -> None:
    # Which of several likeliest counts is judged below.
    taken = [score_confidence(score.probabilities, i) for i in likeliest(score.probabilities)]
    nearest = min(taken, key=lambda wanted: abs(wanted - score.confidence))
    expect_close("the confidence", score.confidence, nearest)


@checks("systemone.score.confidence")
def test_score_confidence(decisions: Decisions) -> None:
    expect_confidence(decisions.score("score"))


@checks("systemone.score.spread")
@pytest.mark.parametrize("name", ["q", "again"])
def test_spread_of_ten_levels(ten_levels: Decisions, name: str) -> None:
    expect_confidence(ten_levels.score(name))


@checks("systemone.score.tie")
def test_score_tie(decisions: Decisions, ten_levels: Decisions) -> None:
    for score in (decisions.score("score"), ten_levels.score("q"), ten_levels.score("again")):
        first, *others = likeliest(score.probabilities)
        if others:
            wanted = score_confidence(score.probabilities, first)
            expect_close("the confidence", score.confidence, wanted)


@checks("systemone.score.one")
def test_one_level(target: Target) -> None:
    score = decide_one(target, but(SCORE, criteria=["fine"])).score("q")
    seen = score.score, list(score.probabilities), score.confidence
    assert seen == (0.0, [1.0], 1.0), f"the score of one level is {seen}"


@checks("systemone.legend.indexes")
def test_legend_indexes(decisions: Decisions) -> None:
    legend = decisions.of("score").get("legend")
    assert isinstance(legend, dict), f"the legend is {legend!r}"
    assert list(legend) == ["0", "1", "2"], f"the legend has {list(legend)}"


LEGENDS = [
    row("systemone.legend.echo", '"fine, I guess"'),
    row("systemone.legend.echo", '"dépôt \\u00e0 \\"9\\" \\ud83d\\ude42\\n"'),
    row("systemone.legend.echo", '{"z": 1, "a": {"y": [], "b": null}}'),
    row("systemone.legend.echo", '["late", true, {}]'),
    row("systemone.legend.decimals", '{"hours": 1.50}'),
    row("systemone.legend.decimals", "[2.0, -0.0, 0.10000000000000000000001]"),
    row("systemone.legend.exponents", "[1e-05]"),
    row("systemone.legend.exponents", "[1E5, 1e+2, 1e-5]"),
    row("systemone.legend.integers", '{"id": 123456789012345678901234567890}'),
    row("systemone.legend.integers", "[-9007199254740993]"),
    row("systemone.legend.minus-zero", '{"a": [-0, 0]}'),
]


@pytest.mark.parametrize("level", LEGENDS)
def test_legend(target: Target, level: str) -> None:
    question = f'{{"type": "score", "instructions": "How bad?", "criteria": ["fine", {level}]}}'
    legend = decide_text(target, f'"state": "s", "questions": {{"q": {question}}}').exact_legends
    assert "q" in legend, "no legend"
    assert isinstance(legend["q"], dict), f"the legend is {legend['q']!r}"
    seen, wanted = legend["q"].get("1"), read_exactly(level.encode())
    assert in_order(seen) == in_order(wanted), f"the level {level} is echoed as {seen!r}"


def in_order(value: Any) -> Any:
    """``value`` with its objects as lists, so that their order is compared."""
    if isinstance(value, dict):
        return [("object",), *((name, in_order(member)) for name, member in value.items())]
    return [in_order(item) for item in value] if isinstance(value, list) else value


@checks("systemone.noul.probability")
def test_noul(decisions: Decisions) -> None:
    seen = decisions.noul("noul")
    assert 0 <= seen <= 1, f"noul is {seen!r}"


@checks("systemone.noul.described")
def test_noul_criteria_are_read(target: Target) -> None:
    bare = decide_one(target, NOUL).input_tokens
    criteria = {"true": "it came after the day that was named", "false": "it came in time"}
    full = decide_one(target, but(NOUL, criteria=criteria)).input_tokens
    assert bare < full, f"{bare} input tokens, {full} with two descriptions"
