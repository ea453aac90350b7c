"""How the completions endpoint judges model, as the chat endpoint does."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import COMPLETIONS
from caldrix_conformance.marks import checks
from caldrix_conformance.target import ABSENT, Target


@checks("completions.model.as-chat")
@pytest.mark.parametrize("model", [ABSENT, 7, "no-such-model"])
def test_model(target: Target, model: object) -> None:
    target.ask(COMPLETIONS, model=model).expect_refusal("model")
