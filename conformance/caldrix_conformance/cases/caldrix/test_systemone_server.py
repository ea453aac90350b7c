"""The route /v1/systemone: bodies, sizes and methods, and servers that can't decide."""

from __future__ import annotations

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.contracts.caldrix.decisions import Decisions
from caldrix_conformance.contracts.caldrix.questions import CHOICE, ask_one, ask_text
from caldrix_conformance.endpoints import SYSTEMONE
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

MOST_BYTES = 4 * 1024 * 1024
REQUEST = '"state": "s", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}'

NO_OBJECTS = [
    row("systemone.body.json", b"{not json"),
    row("systemone.body.json", b""),
    row("systemone.body.object", b"[]"),
    row("systemone.body.object", b'"s"'),
]
HEADERS = {"Content-Type": "application/json"}


@pytest.mark.parametrize("content", NO_OBJECTS)
def test_body(target: Target, content: bytes) -> None:
    answer = target.send("POST", SYSTEMONE, content=content, headers=HEADERS)
    assert answer.expect(400).error, f"an empty error object; {answer.seen}"


@checks("systemone.size.most")
def test_most_bytes(target: Target) -> None:
    Decisions(ask_text(target, REQUEST, size=MOST_BYTES)).noul("q")


@checks("systemone.size.over")
def test_too_many_bytes(target: Target) -> None:
    answer = ask_text(target, REQUEST, size=MOST_BYTES + 1)
    assert answer.expect(413).error, f"no error object; {answer.seen}"


@checks("systemone.route.method")
def test_method(target: Target) -> None:
    answer = target.get(SYSTEMONE)
    assert answer.expect(405).error, f"no error object; {answer.seen}"
    allowed = answer.headers.get("allow", "")
    assert "POST" in allowed, f"the Allow header is {allowed!r}"


@pytest.fixture(scope="session")
def of_a_batched_server(target: Target) -> Answer:
    """What a batched server says to a request that another would answer."""
    return ask_one(target, CHOICE)


@checks("systemone.batched.refused")
def test_batched(of_a_batched_server: Answer) -> None:
    of_a_batched_server.expect(400)


@checks("systemone.batched.param")
def test_batched_param(of_a_batched_server: Answer) -> None:
    of_a_batched_server.expect_refusal(None)


@checks("systemone.batched.words")
def test_batched_words(of_a_batched_server: Answer) -> None:
    expect_words(of_a_batched_server, "/v1/systemone needs --max-batch 1")


WRONG_FIELDS = b'{"model": 7, "no_such_field": 1}'


def expect_words_before_fields(target: Target, wanted: Answer) -> None:
    """Check that a request of wrong fields is refused as a right one is."""
    answer = target.send("POST", SYSTEMONE, content=WRONG_FIELDS, headers=HEADERS)
    seen, words = answer.expect(400).error_message, wanted.expect(400).error_message
    assert seen == words, f"the message is {seen!r}, and {words!r} to a right request"


def expect_body_first(target: Target, other: Answer) -> None:
    """Check that a body that is no JSON is refused for that, and not as any request is."""
    answer = target.send("POST", SYSTEMONE, content=b"{not json", headers=HEADERS)
    seen = answer.expect(400).error_message
    assert seen != other.error_message, f"the message is {seen!r}, as to any request"


@checks("systemone.batched.before-fields")
def test_batched_before_fields(target: Target, of_a_batched_server: Answer) -> None:
    expect_words_before_fields(target, of_a_batched_server)


@checks("systemone.batched.body-first")
def test_batched_body_first(target: Target, of_a_batched_server: Answer) -> None:
    expect_body_first(target, of_a_batched_server)


@pytest.fixture(scope="session")
def of_a_base_model(target: Target) -> Answer:
    """What a model without a chat template says to such a request."""
    if target.capabilities & {Capability.SYSTEMONE, Capability.BATCHED}:
        pytest.skip("the target's /v1/systemone does without a template, or is refused before")
    answer = ask_one(target, CHOICE)
    if answer.status == 404:
        pytest.skip("the target has no /v1/systemone")
    return answer


@checks("systemone.untemplated.refused")
def test_untemplated(of_a_base_model: Answer) -> None:
    of_a_base_model.expect(400)


@checks("systemone.untemplated.param")
def test_untemplated_param(of_a_base_model: Answer) -> None:
    of_a_base_model.expect_refusal(None)


@checks("systemone.untemplated.words")
def test_untemplated_words(of_a_base_model: Answer) -> None:
    expect_words(of_a_base_model, "the model has no chat template; /v1/systemone needs one")


@checks("systemone.untemplated.before-fields")
def test_untemplated_before_fields(target: Target, of_a_base_model: Answer) -> None:
    expect_words_before_fields(target, of_a_base_model)


@checks("systemone.untemplated.body-first")
def test_untemplated_body_first(target: Target, of_a_base_model: Answer) -> None:
    expect_body_first(target, of_a_base_model)


def expect_words(answer: Answer, words: str) -> None:
    """Check what a refusal says."""
    message = answer.expect(400).error_message
    assert words in message, f"the message is {message!r}, without {words!r}"
