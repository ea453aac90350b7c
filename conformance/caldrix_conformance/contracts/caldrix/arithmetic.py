"""What no model has a say in, of an answer of /v1/systemone: the form that its goldens compare.

Probabilities and counts of tokens are a model's own, and give way to what must be so of them. A
number that follows from probabilities gives way where it does follow, and stands as it came where
it doesn't. All else is kept: the order of members, names, types, and the digits of legends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caldrix_conformance.answers import Answer, JsonObject
from caldrix_conformance.contracts.caldrix.decisions import (
    ROUNDING,
    Decisions,
    Number,
    choice_confidence,
    expected_score,
    likeliest,
    score_confidence,
    sum_tolerance,
)

COUNT, PROBABILITY = "<tokens>", "<a probability>"
FOLLOWS, FIRST = "<as its probabilities say>", "<the first of the likeliest>"
OF_ALL = "<1, as far as 32-bit floats sum to it>"


def canonical_arithmetic(answer: Answer) -> dict[str, Any]:
    """The form of an answer with status 200. AssertionError for one of another form."""
    decisions = Decisions(answer)
    body = {
        **decisions.body,
        "answers": {name: _answered(decisions, name) for name in decisions.answers},
        "usage": {**decisions.usage, "input_tokens": _count(decisions.input_tokens)},
    }
    return {
        "status": answer.status,
        "content_type": answer.media_type,
        "order": {"members": list(decisions.body), "answers": list(decisions.answers)},
        "body": body,
    }


def _answered(decisions: Decisions, name: str) -> JsonObject:
    found = decisions.of(name)
    kind = found.get("type")
    assert isinstance(kind, str), f"the answer to {name!r} is of type {kind!r}"
    assert kind in _FORMS, f"the answer to {name!r} is of type {kind!r}"
    reduce = _FORMS[kind]
    return {"order": list(found), **found, **reduce(decisions, name)}


def _choice(decisions: Decisions, name: str) -> JsonObject:
    choice = decisions.choice(name)
    options, found = list(choice.probabilities), list(choice.probabilities.values())
    first = options[likeliest(found)[0]]
    return {
        "choice": FIRST if choice.choice == first else choice.choice,
        "probabilities": _probabilities(options, found),
        "confidence": _follows(choice.confidence, choice_confidence(found)),
    }


def _score(decisions: Decisions, name: str) -> JsonObject:
    score = decisions.score(name)
    found = score.probabilities
    confidence = score_confidence(found, likeliest(found)[0])
    return {
        "score": _follows(score.score, expected_score(found)),
        "legend": _digits(decisions.exact_legends.get(name)),
        "probabilities": _probabilities(list(decisions.probabilities(name)), found),
        "confidence": _follows(score.confidence, confidence),
    }


def _noul(decisions: Decisions, name: str) -> JsonObject:
    found = decisions.noul(name)
    return {"noul": PROBABILITY if 0 <= found <= 1 else found}


_FORMS: Mapping[str, Callable[[Decisions, str], JsonObject]] = {
    "choice": _choice,
    "score": _score,
    "noul": _noul,
}


def _probabilities(names: Sequence[str], found: Sequence[float]) -> JsonObject:
    """The names in their order, and what the probabilities are together."""
    total = sum(found)
    fits = min(found) >= 0 and abs(total - 1) <= sum_tolerance(len(found))
    return {"order": list(names), "sum": OF_ALL if fits else total}


def _follows(seen: float, wanted: float) -> str | float:
    return FOLLOWS if abs(seen - wanted) <= ROUNDING else seen


def _count(tokens: int) -> str | int:
    return COUNT if tokens > 0 else tokens


def _digits(value: Any) -> Any:
    """A legend whose numbers are in the digits that they came in."""
    if isinstance(value, Number):
        return f"<{value.text}>"
    if isinstance(value, dict):
        return {name: _digits(member) for name, member in value.items()}
    return [_digits(item) for item in value] if isinstance(value, list) else value
