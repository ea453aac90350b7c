"""From the logits of a question's labels to its answer.

Probabilities are a softmax in 32-bit floats, and are not made to sum to 1 any better than that:
what follows from them is reckoned from them as they are sent.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from caldrix.decisions.errors import UnusableReading
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.weights.tensor import Float32


@frozen
class ChoiceAnswer:
    """The likeliest option, and all probabilities in the order of the options."""

    choice: str
    probabilities: tuple[float, ...]
    confidence: float


@frozen
class ScoreAnswer:
    """The expected level, and all probabilities from the first level to the last."""

    score: float
    probabilities: tuple[float, ...]
    confidence: float


@frozen
class NoulAnswer:
    """The probability of yes."""

    noul: float


Answer = ChoiceAnswer | ScoreAnswer | NoulAnswer


def probabilities(logits: Float32, temperature: float = 1.0) -> tuple[float, ...]:
    """The softmax of float32 ``[labels]`` logits over a temperature, widened to 64 bits.

    All is reckoned in float32, where the temperature is positive too. Raises UnusableReading where
    a probability is not a finite number.
    """
    # Of a best logit that is or becomes infinite, which ends as NaN and is told of below.
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = logits / np.float32(temperature)
        powers = np.exp(scaled - scaled.max())
    found = powers / powers.sum()
    if not np.isfinite(found).all():
        raise UnusableReading
    return tuple(found.tolist())


def answer(question: Question, found: tuple[float, ...]) -> Answer:
    """The answer to a question, from the probabilities of its options, levels, or yes and no."""
    match question:
        case Choice(options=options):
            chosen = tuple(options)[_likeliest(found)]
            return ChoiceAnswer(chosen, found, choice_confidence(found))
        case Score():
            return ScoreAnswer(_expected(found), found, score_confidence(found))
        case Noul():
            return NoulAnswer(found[0])


def choice_confidence(found: tuple[float, ...]) -> float:
    """How far the best of n is above 1/n, as a part of 1 - 1/n, or 0; 1 for a single option."""
    if len(found) == 1:
        return 1.0
    even = 1 / len(found)
    return max(0.0, (max(found) - even) / (1 - even))


def score_confidence(found: tuple[float, ...]) -> float:
    """1 less the mean distance from the likeliest level, or 0; 1 for a single level.

    It is measured in the mean distance of all levels from their middle, which an even guess has.
    """
    if len(found) == 1:
        return 1.0
    levels = range(len(found))
    likeliest, middle = _likeliest(found), (len(found) - 1) / 2
    distance = sum(p * abs(level - likeliest) for level, p in zip(levels, found, strict=True))
    spread = sum(abs(level - middle) for level in levels) / len(found)
    return max(0.0, 1 - distance / spread)


def _expected(found: tuple[float, ...]) -> float:
    return float(sum(level * p for level, p in enumerate(found)))


def _likeliest(found: tuple[float, ...]) -> int:
    """The first of the most probable."""
    return found.index(max(found))
