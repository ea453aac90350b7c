"""A model without a chat template, whose server answers only completions."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.marks import checks
from caldrix_conformance.target import Target


@checks("template.missing.refused")
def test_refused(target: Target) -> None:
    target.ask(CHAT).expect_refusal("messages")


@checks("template.missing.elsewhere")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_elsewhere(target: Target, stream: bool) -> None:
    message = target.ask(CHAT, stream=stream).expect(400).error.get("message")
    assert "/v1/completions" in str(message), f"the message is {message!r}"
