"""Sampling: which values each field takes, and that it does what it says.

Effects are judged on texts: a setting that leaves only the best token must give the greedy text at
any temperature, and one that spreads must at some seed give another.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.goldens import Goldens
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target

PROMPT = "Once upon a time"
HOT = 2.0
DRAWS = 4
"""So many draws at HOT never all agree, unless the model has next to nothing to choose from."""

TAKEN: dict[str, list[Any]] = {
    "temperature": [0, 0.5, 2, 100],
    "top_k": [0, -1, 1, 50, 10_000_000],
    "top_p": [1, 1.0, 0.5, 1e-9],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1, 1.3, 0.5],
    "seed": [-1, 0, 7, 2**32],
}
REFUSED: dict[str, list[Any]] = {
    "temperature": [-0.1, "1", True, [1]],
    "top_k": [-2, 1.5, "40", True],
    "top_p": [0, -0.5, 1.01, 2, "1", True],
    "min_p": [-0.1, 1.01, "0", False],
    "repetition_penalty": [0, -1, "1", True],
    "seed": [-2, 1.5, "7", True],
}


Ask = Callable[..., str]


def clause(field: str, what: str) -> str:
    return f"sampling.{field.replace('_', '-')}.{what}"


@pytest.fixture(scope="session")
def text(target: Target, some_endpoint: Endpoint) -> Ask:
    """Asks for a short text."""

    def ask(**fields: Any) -> str:
        prompt = some_endpoint.prompt(PROMPT)
        return target.complete(some_endpoint, **{**prompt, "max_tokens": 8, **fields}).text

    return ask


@pytest.fixture(scope="session")
def greedy(text: Ask) -> str:
    return text(temperature=0)


def expect_greedy(seen: str, greedy: str) -> None:
    assert seen == greedy, f"{seen!r}, the greedy text is {greedy!r}"


@pytest.mark.parametrize(
    ("field", "value"),
    [row(clause(f, "takes"), f, value) for f, values in TAKEN.items() for value in values],
)
def test_taken(text: Ask, field: str, value: object) -> None:
    text(max_tokens=1, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [row(clause(f, "refuses"), f, value) for f, values in REFUSED.items() for value in values],
)
@both_endpoints
def test_refused(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.ask(endpoint, **{field: value}).expect_refusal(field)


@checks("sampling.temperature.refuses")
def test_infinite_temperature(target: Target, some_endpoint: Endpoint) -> None:
    """1e999 is JSON, but no finite 64-bit float."""
    body = json.dumps(target.body(some_endpoint, {"temperature": 999})).replace("999", "1e999")
    headers = {"Content-Type": "application/json"}
    answer = target.send("POST", some_endpoint.path, content=body.encode(), headers=headers)
    answer.expect_refusal("temperature")


@checks("sampling.top-p.printed")
def test_printed(golden: Goldens) -> None:
    golden.replay("sampling/document-top-p")


@checks("sampling.default.greedy")
def test_default(text: Ask, greedy: str) -> None:
    for _ in range(2):
        expect_greedy(text(temperature=ABSENT), greedy)


@checks("sampling.default.null")
def test_null(text: Ask) -> None:
    # A server may have been started with defaults of its own: what counts is that null is absent.
    absent = text(temperature=ABSENT, seed=3)
    nulls = dict.fromkeys(TAKEN, None) | {"seed": 3}
    seen = text(**nulls)
    assert seen == absent, f"{seen!r} with nulls, {absent!r} without the fields"


ONLY_THE_BEST = [
    row("sampling.temperature.zero", {"temperature": 0, "seed": 7}),
    row("sampling.top-k.one", {"temperature": HOT, "top_k": 1, "seed": 7}),
    row("sampling.top-p.least", {"temperature": HOT, "top_p": 1e-9, "seed": 7}),
    row("sampling.min-p.one", {"temperature": HOT, "min_p": 1, "seed": 7}),
    row("sampling.repetition-penalty.one", {"temperature": 0, "repetition_penalty": 1}),
]


@pytest.mark.parametrize("fields", ONLY_THE_BEST)
def test_only_the_best(text: Ask, greedy: str, fields: dict[str, Any]) -> None:
    expect_greedy(text(**fields), greedy)


@checks("sampling.top-k.all")
def test_every_token(text: Ask) -> None:
    keeps_all, *seen = (text(temperature=HOT, seed=7, top_k=k) for k in (10_000_000, 0, -1))
    assert seen == [keeps_all] * 2, f"{seen} with top_k 0 and -1, {keeps_all!r} with all tokens"


@checks("sampling.temperature.spreads")
def test_spreads(text: Ask) -> None:
    texts = {text(temperature=HOT, seed=seed) for seed in range(DRAWS)}
    assert len(texts) > 1, f"{DRAWS} seeds all give {texts}"


@checks("sampling.repetition-penalty.acts")
def test_penalty(target: Target, some_endpoint: Endpoint) -> None:
    def repeating(**fields: Any) -> str:
        prompt = some_endpoint.prompt("la la la la la la la la la la")
        return target.complete(some_endpoint, **prompt, max_tokens=8, **fields).text

    plain, penalized = repeating(), repeating(repetition_penalty=3)
    assert plain != penalized, f"{plain!r} with a penalty of 3 and without"


@checks("sampling.seed.same")
def test_same_seed(text: Ask) -> None:
    first, second = (text(temperature=HOT, seed=7) for _ in range(2))
    assert first == second, f"seed 7 gives {first!r} and {second!r}"


@checks("sampling.seed.streamed")
def test_streamed_seed(target: Target, text: Ask, some_endpoint: Endpoint) -> None:
    prompt = some_endpoint.prompt(PROMPT)
    seen = target.stream(some_endpoint, **prompt, max_tokens=8, temperature=HOT, seed=7).text
    wanted = text(temperature=HOT, seed=7)
    assert seen == wanted, f"seed 7 streamed {seen!r}, gave {wanted!r}"


@checks("sampling.seed.fresh")
@pytest.mark.parametrize("seed", [ABSENT, -1, None])
def test_fresh_seed(text: Ask, seed: object) -> None:
    first = text(temperature=HOT, seed=seed)
    for _ in range(DRAWS - 1):
        if text(temperature=HOT, seed=seed) != first:
            return
    raise AssertionError(f"{DRAWS} draws all give {first!r}")


@checks("sampling.endpoints")
@both_endpoints
def test_endpoints(target: Target, endpoint: Endpoint) -> None:
    def ask(**fields: Any) -> str:
        return target.complete(endpoint, **endpoint.prompt(PROMPT), max_tokens=8, **fields).text

    greedy = ask()
    texts = [ask(temperature=HOT, seed=seed) for seed in range(1, DRAWS)]
    assert any(text != greedy for text in texts), f"seeds at temperature {HOT} all give {greedy!r}"
    again = ask(temperature=HOT, seed=1)
    assert again == texts[0], f"seed 1 gives {texts[0]!r} and {again!r}"
