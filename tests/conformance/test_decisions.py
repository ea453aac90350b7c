"""What the suite reckons from an answer to questions, held against the printed one."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from caldrix_conformance.answers import Answer
from caldrix_conformance.compare import first_difference
from caldrix_conformance.contracts.caldrix.arithmetic import (
    COUNT,
    FIRST,
    FOLLOWS,
    OF_ALL,
    PROBABILITY,
    canonical_arithmetic,
)
from caldrix_conformance.contracts.caldrix.decisions import (
    Decisions,
    Number,
    choice_confidence,
    expect_close,
    expected_score,
    likeliest,
    read_exactly,
    same_readings,
    score_confidence,
    spaces_between,
    sum_tolerance,
)
from caldrix_conformance.resources import goldens_directory


def answer(body: bytes) -> Decisions:
    return Decisions(Answer("POST", "/v1/systemone", None, 200, {}, body))


@pytest.fixture
def printed() -> Decisions:
    path = goldens_directory("caldrix") / "systemone" / "document-customer-message.json"
    (body,) = json.loads(path.read_text("utf-8"))["response"]["body"]
    return answer(body.encode())


def test_the_printed_numbers(printed: Decisions) -> None:
    team, urgency = printed.choice("team"), printed.score("urgency")
    assert choice_confidence(list(team.probabilities.values())) == team.confidence
    assert expected_score(urgency.probabilities) == urgency.score
    assert score_confidence(urgency.probabilities, 0) == urgency.confidence
    assert printed.noul("angry") == 0.981803297996521
    assert (printed.input_tokens, printed.output_tokens) == (204, 0)
    total = sum(urgency.probabilities)
    assert 0 < abs(total - 1) < sum_tolerance(3)


def test_renormalised_numbers_are_told_apart(printed: Decisions) -> None:
    urgency = printed.score("urgency")
    shares = [p / sum(urgency.probabilities) for p in urgency.probabilities]
    with pytest.raises(AssertionError, match="the score is"):
        expect_close("the score", expected_score(shares), urgency.score)
    with pytest.raises(AssertionError, match="the confidence is"):
        expect_close("the confidence", score_confidence(shares, 0), urgency.confidence)


def test_confidence_at_the_ends() -> None:
    assert choice_confidence([1.0]) == 1
    assert choice_confidence([0.25] * 4) == 0
    assert score_confidence([1.0], 0) == 1
    assert score_confidence([0.0, 1.0, 0.0], 1) == 1
    # All at one end is as far from the other as can be, and no less than unsure.
    assert score_confidence([0.5, 0.0, 0.5], 0) == 0


def test_ties() -> None:
    assert likeliest([0.25, 0.375, 0.375]) == [1, 2]


def test_digits() -> None:
    assert read_exactly(b'{"a": [1.50, 1e-05, 100000000000000000000]}') == {
        "a": [Number("1.50"), Number("1e-05"), Number("100000000000000000000")]
    }


def test_same_readings(printed: Decisions) -> None:
    other = answer(printed.answer.body.replace(b"0.981803297996521", b"0.9"))
    assert same_readings(printed, printed)
    assert not same_readings(printed, other)


def changed(decisions: Decisions, old: bytes, new: bytes) -> Answer:
    body = decisions.answer.body
    assert body.count(old) == 1
    return evolve(decisions.answer, headers=JSON, body=body.replace(old, new))


JSON = {"content-type": "application/json"}


def test_what_no_model_has_a_say_in(printed: Decisions) -> None:
    """The printed answer keeps all the arithmetic, and has the form of any right one."""
    form = canonical_arithmetic(evolve(printed.answer, headers=JSON))
    assert form["order"]["answers"] == ["team", "angry", "urgency"]
    assert form["body"]["usage"] == {"input_tokens": COUNT, "output_tokens": 0}
    assert form["body"]["answers"] == {
        "team": {
            "order": ["type", "choice", "probabilities", "confidence"],
            "type": "choice",
            "choice": FIRST,
            "probabilities": {"order": ["billing", "shipping", "technical"], "sum": OF_ALL},
            "confidence": FOLLOWS,
        },
        "angry": {"order": ["type", "noul"], "type": "noul", "noul": PROBABILITY},
        "urgency": {
            "order": ["type", "score", "legend", "probabilities", "confidence"],
            "type": "score",
            "score": FOLLOWS,
            "legend": {"0": "not urgent", "1": "somewhat urgent", "2": "very urgent"},
            "probabilities": {"order": ["0", "1", "2"], "sum": OF_ALL},
            "confidence": FOLLOWS,
        },
    }


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        (b'"choice":"billing"', b'"choice":"shipping"', "shipping"),
        (b"0.9965062439441681", b"0.99650624394", "0.99650624394"),
        (b"0.10968978330492973", b"0.1096897", "0.1096897"),
        (b"0.8354653250426054", b"0.8354653", "0.8354653"),
        (b"0.981803297996521", b"1.5", "1.5"),
        (b"0.9140376448631287", b"0.92", "sum is 1.00596"),
        (b'"2":"very urgent"', b'"2":[2.50]', "<2.50>"),
        (b'"input_tokens":204', b'"input_tokens":0', "input_tokens is 0"),
        (b'"output_tokens":0', b'"output_tokens":1', "output_tokens is 1"),
        (b'"angry":{"type":"noul"', b'"angry":{"type":"noul","more":7', "order has 3 items"),
    ],
)
def test_what_does_not_follow_stands_out(
    printed: Decisions, old: bytes, new: bytes, seen: str
) -> None:
    right = canonical_arithmetic(evolve(printed.answer, headers=JSON))
    difference = first_difference(right, canonical_arithmetic(changed(printed, old, new)))
    assert difference is not None
    assert seen in difference


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"type":"noul"', b'"type":"yes_no"'),
        (b'"type":"choice"', b'"type":["choice"]'),
        (b"0.981803297996521", b'"so"'),
    ],
)
def test_what_has_no_form_at_all(printed: Decisions, old: bytes, new: bytes) -> None:
    with pytest.raises(AssertionError):
        canonical_arithmetic(changed(printed, old, new))


def test_spaces_between() -> None:
    assert spaces_between(rb'{"a b":["c \" d",1]}') == 0
    assert spaces_between(b'{"a": [1,\n2]}') == 2


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"answers": []}',
        b'{"answers": {"q": 7}}',
        b'{"answers": {"q": {"probabilities": {}}}}',
        b'{"answers": {"q": {"choice": ["a"], "probabilities": {"a": 1}, "confidence": 1}}}',
        b'{"answers": {"q": {"choice": "a", "probabilities": {"a": true}, "confidence": 1}}}',
        b'{"answers": {"q": {"choice": "a", "probabilities": {"a": NaN}, "confidence": 1}}}',
        b'{"answers": {"q": {"choice": "a", "probabilities": {"a": 1%b}, "confidence": 1}}}'
        % (b"0" * 400),
    ],
)
def test_what_is_no_choice(body: bytes) -> None:
    with pytest.raises(AssertionError):
        answer(body).choice("q")
