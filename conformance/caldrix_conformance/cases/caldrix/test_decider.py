"""The decider reading: its limits, how values are written, and what is read only once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from caldrix_conformance.answers import Answer, numbers_in
from caldrix_conformance.contracts.caldrix.decisions import Decisions, expect_same_prompt, nearly
from caldrix_conformance.contracts.caldrix.questions import (
    CHOICE,
    NOUL,
    SCORE,
    STATE,
    ask,
    ask_one,
    but,
    decide,
    decide_one,
    expect_written,
    levels,
    options,
)
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.prompts import TOO_LONG
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

PREFIX = "this model is a decider: "
CRITERIA, INSTRUCTIONS = "questions.q.criteria", "questions.q.instructions"

NO_INSTRUCTIONS = {"type": "noul", "criteria": {"true": "late"}}

TAKEN = [
    row("decider.choice.least", but(CHOICE, criteria=options(2))),
    row("decider.score.least", but(SCORE, criteria=levels(2))),
    row("decider.score.most", but(SCORE, criteria=levels(10))),
    row("decider.noul.criteria", {"type": "noul", "criteria": {"true": "late"}}),
    row("decider.noul.criteria", {"type": "noul", "criteria": {"true": None, "false": "in time"}}),
    row(
        "decider.noul.criteria", {"type": "noul", "instructions": "", "criteria": {"true": "late"}}
    ),
]


@pytest.mark.parametrize("question", TAKEN)
def test_taken(target: Target, question: object) -> None:
    Decisions(ask_one(target, question)).of("q")


LIMITS: list[tuple[str, Any, str]] = [
    ("decider.choice.one", but(CHOICE, criteria=options(1)), CRITERIA),
    ("decider.choice.too-many", but(CHOICE, criteria=options(256)), CRITERIA),
    ("decider.score.one", but(SCORE, criteria=levels(1)), CRITERIA),
    ("decider.score.too-many", but(SCORE, criteria=levels(11)), CRITERIA),
    ("decider.choice.instructions", but(CHOICE, instructions=ABSENT), INSTRUCTIONS),
    ("decider.choice.instructions", but(CHOICE, instructions=None), INSTRUCTIONS),
    ("decider.choice.instructions", but(CHOICE, instructions=""), INSTRUCTIONS),
    ("decider.score.instructions", but(SCORE, instructions=ABSENT), INSTRUCTIONS),
    ("decider.score.instructions", but(SCORE, instructions=None), INSTRUCTIONS),
    ("decider.score.instructions", but(SCORE, instructions=""), INSTRUCTIONS),
]
BARE_NOULS: list[Any] = [
    {"type": "noul"},
    {"type": "noul", "instructions": None},
    {"type": "noul", "criteria": {"true": None, "false": None}},
]


@pytest.mark.parametrize(("question", "param"), [row(*limit) for limit in LIMITS])
def test_refused(target: Target, question: object, param: str) -> None:
    ask_one(target, question).expect_refusal(param)


@checks("decider.noul.bare")
@pytest.mark.parametrize("question", BARE_NOULS)
def test_bare_noul(target: Target, question: object) -> None:
    ask_one(target, question).expect_refusal("questions.q", within=True)


@checks("decider.noul.empty")
@pytest.mark.parametrize("criteria", [{"true": ""}, {"true": "", "false": None}])
def test_empty_noul(target: Target, criteria: object) -> None:
    question = but(NOUL, instructions="", criteria=criteria)
    ask_one(target, question).expect_refusal("questions.q", within=True)


@checks("decider.refusal.prefix")
@pytest.mark.parametrize("question", [*(question for _, question, _ in LIMITS), *BARE_NOULS])
def test_prefix(target: Target, question: object) -> None:
    message = ask_one(target, question).expect(400).error_message
    assert message.startswith(PREFIX), f"the message is {message!r}"


@checks("decider.questions.prefix")
@pytest.mark.parametrize("count", [0, 65])
def test_prefix_of_questions(target: Target, count: int) -> None:
    answer = ask(target, {f"q{index}": NOUL for index in range(count)})
    message = answer.expect(400).error_message
    assert message.startswith(PREFIX), f"the message is {message!r}"


@pytest.fixture(scope="session")
def max_options(target: Target) -> int:
    """How many options the config takes, if the refusal of too many tells it."""
    refusal = ask_one(target, but(CHOICE, criteria=options(256))).expect(400)
    message = refusal.error_message
    told = {number for number in numbers_in(message) if 3 <= number <= 255}
    if len(told) != 1:
        pytest.skip(f"the config's max_options is 2, or not told by {message!r}")
    return told.pop()


@checks("decider.choice.most")
def test_most_options(target: Target, max_options: int) -> None:
    seen = decide_one(target, but(CHOICE, criteria=options(max_options))).probabilities("q")
    assert len(seen) == max_options, f"{len(seen)} probabilities for {max_options} options"
    if max_options < 255:
        one_more = but(CHOICE, criteria=options(max_options + 1))
        ask_one(target, one_more).expect_refusal(CRITERIA)


@pytest.fixture(scope="session")
def past_z(max_options: int) -> int:
    """One option more than there are letters."""
    if max_options < 27:
        pytest.skip("the config's max_options is below 27")
    return 27


@checks("decider.labels.two-letter")
def test_past_z(target: Target, past_z: int) -> None:
    seen = decide_one(target, but(CHOICE, criteria=options(past_z))).probabilities("q")
    assert len(seen) == past_z, f"{len(seen)} probabilities for {past_z} options"
    assert all(p > 0 for p in seen.values()), f"an option without a label of its own: {seen}"


VALUE = '{"b":["x,y",2],"a":{"c":null,"d":true}}'
SPACED = '{"b": ["x,y", 2], "a": {"c": null, "d": true}}'
WRITTEN = [
    row("decider.json.state", "state", VALUE, SPACED),
    row("decider.json.instructions", "instructions", VALUE, SPACED),
    row("decider.json.description", "description", VALUE, SPACED),
    row("decider.json.level", "level", VALUE, SPACED),
    row("decider.json.criterion", "criterion", VALUE, SPACED),
    row("decider.json.non-ascii", "state", r'["d\u00e9p\u00f4t \ud83d\ude42"]', '["dépôt 🙂"]'),
    row("decider.json.numbers", "state", '{"n":1.50}', '{"n": 1.5}'),
    row("decider.json.numbers", "state", '{"n":0.00001}', '{"n": 1e-05}'),
    row("decider.json.numbers", "state", '{"n":1e16}', '{"n": 1e+16}'),
    row("decider.json.numbers", "state", '{"n":2.0}', '{"n": 2.0}'),
    row("decider.json.numbers", "state", '{"n":-0}', '{"n": 0}'),
    row(
        "decider.json.numbers",
        "state",
        '{"n":123456789012345678901234567890}',
        '{"n": 123456789012345678901234567890}',
    ),
]


@pytest.mark.parametrize(("place", "value", "text"), WRITTEN)
def test_written(target: Target, place: str, value: str, text: str) -> None:
    expect_written(target, place, value, text)


def listed(item: str, count: int, *, indexed: bool = False) -> str:
    """A JSON list of objects that hold ``item``, with their positions where asked."""
    places = (f'"_index": {index}, ' if indexed else "" for index in range(count))
    return "[" + ", ".join(f"{{{place}{item}}}" for place in places) + "]"


A, VALUE_A = '"a": 1', '"value": "a"'
STRINGS = "[" + ", ".join(['"a"'] * 8) + "]"
LONG, INDEXED = listed(A, 8), listed(A, 8, indexed=True)
OWN = LONG.replace('{"a": 1}', '{"a": 1, "_index": 9}', 1)
INDEXES = [
    row("decider.index.eight", "state", LONG, INDEXED),
    row("decider.index.eight", "state", listed(A, 12), listed(A, 12, indexed=True)),
    row("decider.index.seven", "state", listed(A, 7), listed(A, 7)),
    row("decider.index.nested", "state", f'{{"k": [{LONG}]}}', f'{{"k": [{INDEXED}]}}'),
    row("decider.index.values", "state", STRINGS, listed(VALUE_A, 8, indexed=True)),
    row("decider.index.own", "state", OWN, INDEXED.replace("0", "9", 1)),
    row("decider.index.elsewhere", "instructions", LONG, LONG),
    row("decider.index.elsewhere", "description", LONG, LONG),
    row("decider.index.elsewhere", "level", LONG, LONG),
]


@pytest.mark.parametrize(("place", "value", "text"), INDEXES)
def test_index(target: Target, place: str, value: str, text: str) -> None:
    expect_written(target, place, value, text)


@checks("decider.noul.question")
def test_question_of_a_noul(target: Target) -> None:
    asked = but(NO_INSTRUCTIONS, instructions="Which answer fits the context?")
    expect_same_prompt(decide_one(target, NO_INSTRUCTIONS), decide_one(target, asked))


@checks("decider.description.empty")
def test_empty_description(target: Target) -> None:
    empty, null = (
        decide_one(target, but(CHOICE, criteria={"shipping": text, "billing": "payments"}))
        for text in ("", None)
    )
    expect_same_prompt(empty, null)


@checks("decider.answer.unrounded")
def test_not_rounded(target: Target) -> None:
    answered = decide(target, {"c": CHOICE, "s": SCORE, "n": NOUL})
    numbers = [*itertools.chain(*answered.readings.values()), answered.score("s").score]
    assert any(number != round(number, 6) for number in numbers), f"all are rounded: {numbers}"


@checks("decider.answer.captured")
@captured("decider/arithmetic-answer")
def test_captured(target: Target, golden: Golden, past_z: int) -> None:
    questions = {
        "wide": but(CHOICE, criteria=options(past_z)),
        "levels": but(SCORE, criteria=[f"{n}: {level}" for n, level in enumerate(levels(10))]),
        "bare": NO_INSTRUCTIONS,
        "empty": but(CHOICE, criteria={"shipping": "", "billing": None}),
    }
    golden.arithmetic(ask(target, questions, state=[{"late": n} for n in range(8)]))


SAME_PROMPTS = 1e-5
"""How near readings are that come from the same prompts on any machine, and else hardly ever."""


@pytest.fixture(scope="session")
def isolated(target: Target) -> Decisions:
    """A score whose levels are asked one at a time, as is seen from their order being no matter."""
    there = decide_one(target, SCORE)
    back = decide_one(target, but(SCORE, criteria=SCORE["criteria"][::-1]))
    forwards, backwards = there.score("q").probabilities, back.score("q").probabilities[::-1]
    apart = (abs(p - q) for p, q in zip(forwards, backwards, strict=False))
    if max(apart) > SAME_PROMPTS:
        pytest.skip("the config asks all levels of a score at once")
    return there


@checks("decider.isolated.share")
def test_shares_of_yes(isolated: Decisions, target: Target) -> None:
    template = "{}\nProposed answer: {}\nDoes the proposed answer fit?"
    asked = {
        f"level {index}": but(NOUL, instructions=template.format(SCORE["instructions"], level))
        for index, level in enumerate(SCORE["criteria"])
    }
    answered = decide(target, asked)
    yes = [answered.noul(name) for name in asked]
    total = sum(yes)
    assert total > 0, "no level has a chance"
    seen, wanted = isolated.score("q").probabilities, [p / total for p in yes]
    assert nearly(seen, wanted), f"{list(seen)}, while the levels asked alone have {wanted}"


@checks("decider.isolated.number")
def test_leading_number(isolated: Decisions, target: Target) -> None:
    numbered = [f"{index}: {level}" for index, level in enumerate(SCORE["criteria"])]
    answered = decide_one(target, but(SCORE, criteria=numbered))
    seen, wanted = answered.score("q").probabilities, isolated.score("q").probabilities
    assert nearly(seen, wanted), f"{list(seen)} with numbers, {list(wanted)} without"
    counts = answered.input_tokens, isolated.input_tokens
    assert counts[0] == counts[1], f"{counts[0]} input tokens with numbers, {counts[1]} without"


ASKED = {"a": NOUL, "b": but(NOUL, instructions="Is anyone angry about it?"), "c": CHOICE}
"""Questions of one prompt each."""


def counted(target: Target, names: str, state: str = STATE) -> int:
    """The input tokens of the questions of these names, asked together."""
    return decide(target, {name: ASKED[name] for name in names}, state=state).input_tokens


def saved(target: Target, names: str, state: str = STATE) -> int:
    """How many tokens are read once together and each time alone."""
    return sum(counted(target, name, state) for name in names) - counted(target, names, state)


@checks("decider.usage.once")
def test_state_is_read_once(target: Target) -> None:
    longer = STATE * 8
    grown = counted(target, "a", longer) - counted(target, "a")
    seen = saved(target, "ab"), saved(target, "ab", longer)
    assert seen[0] > 0, f"{seen[0]} tokens are saved by asking two questions of one state"
    more = seen[1] - seen[0]
    assert more == grown, f"{grown} tokens more of state save {more} more"


@checks("decider.usage.sum")
def test_questions_are_counted_each(target: Target) -> None:
    pair, other, three = (saved(target, names) for names in ("ab", "bc", "abc"))
    seen = pair, other, three
    assert seen == (pair, pair, 2 * pair), f"two, two others and all three save {seen} tokens"


@pytest.fixture(scope="session")
def over_the_cap(target: Target) -> Answer:
    """What is said to a state longer than any cap."""
    return ask_one(target, NOUL, state=TOO_LONG)


@checks("decider.state.cap")
def test_state_cap(over_the_cap: Answer) -> None:
    over_the_cap.expect_refusal("state")


@checks("decider.state.counts")
def test_state_counts(over_the_cap: Answer) -> None:
    message = over_the_cap.expect(400).error_message
    assert len(numbers_in(message)) >= 2, f"the message tells no two counts: {message!r}"


@checks("decider.refusal.unprefixed")
def test_no_prefix(over_the_cap: Answer, target: Target) -> None:
    question = ask_one(target, but(NOUL, instructions=TOO_LONG))
    for refusal in (over_the_cap, question):
        message = refusal.expect(400).error_message
        assert not message.startswith(PREFIX), f"the message is {message!r}"


@checks("decider.context.counts")
def test_context_counts(target: Target) -> None:
    answer = ask_one(target, but(NOUL, instructions=TOO_LONG))
    message = answer.expect(400).error_message
    assert len(numbers_in(message)) >= 2, f"the message tells no two counts: {message!r}"


@pytest.fixture(scope="session")
def too_much(target: Target, isolated: Decisions) -> Answer:
    """What is said to 640 prompts of an eighth of the context each, which is told in a refusal."""
    message = ask_one(target, but(NOUL, instructions=TOO_LONG)).expect(400).error_message
    told = [number for number in numbers_in(message) if number > 64]
    if len(told) < 2:
        pytest.skip(f"the context is not told by {message!r}")
    each = (counted(target, "a", STATE * 9) - counted(target, "a")) / 8
    state = STATE * math.ceil(min(told) / 8 / each)
    score = but(SCORE, criteria=levels(10))
    answer = ask(target, {f"q{index}": score for index in range(64)}, state=state)
    if answer.status == 400 and answer.error.get("param") == "state":
        pytest.skip("the config's max_state_tokens is less than an eighth of the context")
    return answer


@checks("decider.context.all")
def test_too_much_together(too_much: Answer) -> None:
    too_much.expect(400)


@checks("decider.context.all-named")
def test_what_is_too_much(too_much: Answer) -> None:
    too_much.expect_refusal("questions")
    message = too_much.error_message
    assert len(numbers_in(message)) >= 2, f"the message tells no two counts: {message!r}"
