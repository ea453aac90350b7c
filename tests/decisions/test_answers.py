"""From logits to answers: the document's own numbers, ties, ends, and readings of no use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.decisions.answers import (
    ChoiceAnswer,
    NoulAnswer,
    ScoreAnswer,
    answer,
    choice_confidence,
    probabilities,
    score_confidence,
)
from caldrix.decisions.errors import UnusableReading
from caldrix.decisions.questions import Choice, Noul, Score

THREE = Choice(None, {"billing": None, "shipping": None, "technical": None})
LEVELS = Score(None, ("not urgent", "somewhat urgent", "very urgent"))


def test_the_printed_numbers_to_the_last_bit() -> None:
    team = (0.9976708292961121, 0.0021615091245621443, 0.00016766643966548145)
    assert answer(THREE, team) == ChoiceAnswer("billing", team, 0.9965062439441681)
    # They sum to 1.000000028: made to sum to 1 they would give another score.
    urgency = (0.9140376448631287, 0.06223498284816742, 0.023727400228381157)
    assert answer(LEVELS, urgency) == ScoreAnswer(0.10968978330492973, urgency, 0.8354653250426054)
    assert answer(Noul(None), (0.981803297996521, 0.018196702003479)) == NoulAnswer(
        0.981803297996521
    )


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=26))
def test_probabilities_are_a_softmax_of_32_bit_floats(logits: list[float]) -> None:
    found = probabilities(np.array(logits, np.float32))
    powers = np.exp(np.array(logits, np.float64) - max(logits))
    np.testing.assert_allclose(found, powers / powers.sum(), rtol=1e-5)
    assert all(float(np.float32(p)) == p for p in found)


def test_what_is_impossible_has_probability_0() -> None:
    assert probabilities(np.array([0, -np.inf, 0], np.float32)) == (0.5, 0.0, 0.5)


@pytest.mark.parametrize("logits", [[0, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
def test_logits_that_give_no_probabilities(logits: list[float]) -> None:
    with pytest.raises(UnusableReading, match="gave no usable reading"):
        probabilities(np.array(logits, np.float32))


def test_the_first_of_equals_counts() -> None:
    chosen = answer(THREE, (0.2, 0.4, 0.4))
    assert isinstance(chosen, ChoiceAnswer)
    assert chosen.choice == "shipping"
    # From the second of four the others are 1, 1 and 2 away; from the third they would be 2, 1, 1.
    assert score_confidence((0.2, 0.3, 0.3, 0.2)) == pytest.approx(1 - 0.9 / 1)
    assert score_confidence((0.1, 0.3, 0.3, 0.3)) == pytest.approx(1 - 1.0 / 1)


def test_confidence_at_its_ends() -> None:
    assert choice_confidence((1.0,)) == score_confidence((1.0,)) == 1.0
    assert choice_confidence((0.25,) * 4) == 0.0
    assert choice_confidence((0.3333333,) * 3) == 0.0
    assert score_confidence((0.0, 1.0, 0.0)) == 1.0
    assert score_confidence((0.5, 0.0, 0.5)) == 0.0


def test_one_option_and_one_level_are_certain() -> None:
    assert answer(Choice(None, {"only": None}), (1.0,)) == ChoiceAnswer("only", (1.0,), 1.0)
    assert answer(Score(None, ("fine",)), (1.0,)) == ScoreAnswer(0.0, (1.0,), 1.0)
