"""Answers as cases look at them: whatever is not as it should be fails the case, and is told."""

from __future__ import annotations

import json

import pytest

from caldrix_conformance.answers import Answer, number_in, numbers_in


def answer(body: object, status: int = 400, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer("POST", "/v1/completions", None, status, named, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("header", "media_type"),
    [("Text/Plain; version=0.0.4", "text/plain"), ("application/json", "application/json")],
)
def test_media_type(header: str, media_type: str) -> None:
    assert answer({}, content_type=header).media_type == media_type
    assert answer({}).media_type == ""


def test_a_refusal() -> None:
    refusal = answer({"error": {"message": "no", "param": "stop[1]"}})
    assert refusal.error_message == "no"
    assert refusal.expect_refusal("stop", within=True) == refusal.error
    assert answer({"error": {"param": None}}).expect_refusal(None) == {"param": None}


@pytest.mark.parametrize(
    ("error", "param", "within", "complaint"),
    [
        ({"param": "stop[1]"}, "stop", False, "wanted param 'stop', got 'stop.1.'"),
        ({"param": "stopped"}, "stop", True, "wanted param 'stop', got 'stopped'"),
        ({"param": "stop"}, None, False, "wanted param None, got 'stop'"),
        ({}, None, False, "the error has no param"),
        ({}, "stop", False, "the error has no param"),
    ],
)
def test_another_refusal(
    error: dict[str, object], param: str | None, within: bool, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        answer({"error": error}).expect_refusal(param, within=within)
    with pytest.raises(AssertionError, match="wanted 400"):
        answer({"error": error}, 500).expect_refusal(param, within=within)


@pytest.mark.parametrize("value", ["1", True, None, float("nan"), 10**400])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(AssertionError, match="p is "):
        number_in({"p": value}, "p")


def test_numbers_in() -> None:
    told = "the state is 40,000 tokens, at most 32768 of 1_000_000, 7"
    assert numbers_in(told) == {40_000, 32_768, 1_000_000, 7}
