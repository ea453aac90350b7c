"""Exchanges that many cases look at, each had once a run."""

from __future__ import annotations

import pytest

from caldrix_conformance.answers import Answer, Completion, Streamed
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.target import Target

PROMPTS = {
    "chat": "Name the seven days of the week.",
    "completions": "The days of the week are Monday,",
}
FIXTURES = {"chat": "chat", "completions": "text"}
"""What the names of an endpoint's exchanges begin with."""
LENGTH = 16
"""Tokens of the answers below: enough for several pieces, quick on a slow machine."""


@pytest.fixture(scope="session")
def some_endpoint(target: Target) -> Endpoint:
    """An endpoint for what is the same on both; completions where it is, for its short prompts."""
    for endpoint in (COMPLETIONS, CHAT):
        if endpoint.capability in target.capabilities:
            return endpoint
    pytest.skip("the target has no generating endpoint")


@pytest.fixture(scope="session")
def chat_answer(target: Target) -> Answer:
    return target.ask(CHAT, **CHAT.prompt(PROMPTS["chat"]), max_tokens=LENGTH)


@pytest.fixture(scope="session")
def chat_completion(chat_answer: Answer) -> Completion:
    return chat_answer.completion(CHAT)


@pytest.fixture(scope="session")
def chat_stream(target: Target) -> Streamed:
    return target.stream(CHAT, **CHAT.prompt(PROMPTS["chat"]), max_tokens=LENGTH)


@pytest.fixture(scope="session")
def chat_usage_stream(target: Target) -> Streamed:
    options = {"include_usage": True}
    prompt = CHAT.prompt(PROMPTS["chat"])
    return target.stream(CHAT, **prompt, max_tokens=LENGTH, stream_options=options)


@pytest.fixture(scope="session")
def text_answer(target: Target) -> Answer:
    prompt = COMPLETIONS.prompt(PROMPTS["completions"])
    return target.ask(COMPLETIONS, **prompt, max_tokens=LENGTH)


@pytest.fixture(scope="session")
def text_completion(text_answer: Answer) -> Completion:
    return text_answer.completion(COMPLETIONS)


@pytest.fixture(scope="session")
def text_stream(target: Target) -> Streamed:
    prompt = COMPLETIONS.prompt(PROMPTS["completions"])
    return target.stream(COMPLETIONS, **prompt, max_tokens=LENGTH)


@pytest.fixture(scope="session")
def text_usage_stream(target: Target) -> Streamed:
    options = {"include_usage": True}
    prompt = COMPLETIONS.prompt(PROMPTS["completions"])
    return target.stream(COMPLETIONS, **prompt, max_tokens=LENGTH, stream_options=options)


@pytest.fixture
def whole(endpoint: Endpoint, request: pytest.FixtureRequest) -> Completion:
    """The answer of the case's endpoint."""
    completion: Completion = request.getfixturevalue(f"{FIXTURES[endpoint.name]}_completion")
    return completion


@pytest.fixture
def stream(endpoint: Endpoint, request: pytest.FixtureRequest) -> Streamed:
    """The same answer streamed."""
    streamed: Streamed = request.getfixturevalue(f"{FIXTURES[endpoint.name]}_stream")
    return streamed


@pytest.fixture
def usage_stream(endpoint: Endpoint, request: pytest.FixtureRequest) -> Streamed:
    """The same answer streamed with its usage."""
    streamed: Streamed = request.getfixturevalue(f"{FIXTURES[endpoint.name]}_usage_stream")
    return streamed
