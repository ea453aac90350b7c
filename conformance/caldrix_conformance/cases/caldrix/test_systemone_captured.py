"""Whole answers of /v1/systemone, of which a model has no say in more than their probabilities."""

from __future__ import annotations

import pytest

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.contracts.caldrix.questions import (
    CHOICE,
    NOUL,
    PRINTED,
    PRINTED_STATE,
    SCORE,
    STATE,
    ask,
    but,
    levels,
    options,
)
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks, needs
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

VALUES = {
    "10": but(
        SCORE,
        instructions=["How bad", {"is": "it?"}],
        criteria=[
            "fine, I guess",
            {"z": 1.5, "least": 1e-05, "id": 123456789012345678901234567890, "a": {"y": []}},
            ["late", True, None, {}],
            'dépôt à "9" 🙂\n',
        ],
    ),
    "Ja/нет 🙂": but(
        CHOICE,
        instructions={"who": "answers?"},
        criteria={"b": {"z": 2.0, "a": [1]}, "10": None, "2": ["so"], "é b": "else"},
    ),
    "2": but(NOUL, criteria={"true": {"came": "late"}, "false": ["in", "time"]}),
}
"""Of every type that a value may have, under names in no order that a map might fall into."""
TENS = {"score": but(SCORE, criteria=levels(10)), "choice": but(CHOICE, criteria=options(10))}
SINGLE = {"choice": but(CHOICE, criteria=options(1)), "score": but(SCORE, criteria=["fine"])}

CAPTURED = [
    row(
        "systemone.answer.captured",
        PRINTED,
        PRINTED_STATE,
        golden="systemone/arithmetic-customer-message",
    ),
    row(
        "systemone.answer.captured",
        VALUES,
        {"order": [7, {"late": True}]},
        golden="systemone/arithmetic-values",
    ),
]


@pytest.mark.parametrize(("questions", "state"), CAPTURED)
def test_captured(target: Target, golden: Golden, questions: object, state: object) -> None:
    golden.arithmetic(ask(target, questions, state=state))


@checks("systemone.answer.captured")
@captured("systemone/arithmetic-tens")
def test_ten_of_each(target: Target, golden: Golden) -> None:
    answer = ask(target, TENS)
    if Capability.DECIDER in target.capabilities and answer.status == 400:
        pytest.skip("the config's max_options is below ten")
    golden.arithmetic(answer)


@needs(Capability.ZERO_SHOT)
@checks("systemone.answer.captured")
@captured("systemone/arithmetic-single")
def test_one_of_each(target: Target, golden: Golden) -> None:
    golden.arithmetic(ask(target, SINGLE, state=STATE))
