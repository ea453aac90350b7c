"""Sampling does what its fields say, on both endpoints.

Effects are judged on texts: a setting that leaves only the best token must give the greedy text at
any temperature, and one that spreads must at some seed give another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.prompts import NEUTRAL
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target

PROMPT = "Once upon a time"
COUNTING = "one, two, three, four, five, six, one, two, three, four,"
"""A text after which the next tokens are in little doubt."""
REPEATING = "la la la la la la la la la la"
HOT = 2.0
FLAT = 1e6
"""A temperature at which all tokens that are kept are as good as equally likely."""
DRAWS = 4
"""So many draws at HOT never all agree, unless the model has next to nothing to choose from."""
COINS = 16
"""So many draws of two equally likely tokens agree once in 32,768 times."""
FEW_COINS = 8
"""So many of three equally likely tokens leave one out once in eight times."""

Ask = Callable[..., str]


@pytest.fixture
def text(target: Target, endpoint: Endpoint) -> Ask:
    """Asks the case's endpoint for a short text, with the fields that it doesn't name off."""

    def ask(prompt: str = PROMPT, **fields: Any) -> str:
        fields = {**endpoint.prompt(prompt), "max_tokens": 8, **NEUTRAL, **fields}
        return target.complete(endpoint, **fields).text

    return ask


ONLY_THE_BEST = [
    row("sampling.temperature.zero", {"temperature": 0, "seed": 7}),
    row("sampling.top-k.one", {"temperature": HOT, "top_k": 1, "seed": 7}),
    row("sampling.top-p.least", {"temperature": HOT, "top_p": 1e-9, "seed": 7}),
    row("sampling.min-p.one", {"temperature": HOT, "min_p": 1, "seed": 7}),
]


@pytest.mark.parametrize("fields", ONLY_THE_BEST)
@both_endpoints
def test_only_the_best(text: Ask, fields: dict[str, Any]) -> None:
    seen, greedy = text(**fields), text()
    assert seen == greedy, f"{seen!r}, the greedy text is {greedy!r}"


@checks("sampling.repetition-penalty.one")
@both_endpoints
def test_no_penalty(text: Ask) -> None:
    """All else being equal, it is as one that is too small to matter."""
    off, seen = (text(REPEATING, repetition_penalty=by) for by in (1 + 1e-9, 1))
    assert seen == off, f"{seen!r} with a penalty of 1, {off!r} with one next to it"


@checks("sampling.top-k.all")
@both_endpoints
def test_every_token(text: Ask) -> None:
    keeps_all, *seen = (text(temperature=HOT, seed=7, top_k=k) for k in (10_000_000, 0, -1))
    assert seen == [keeps_all] * 2, f"{seen} with top_k 0 and -1, {keeps_all!r} with all tokens"
    unasked, null = (text(temperature=HOT, seed=7, top_k=k) for k in (ABSENT, None))
    has_a_default = unasked != keeps_all
    assert has_a_default or null == keeps_all, f"{null!r} with null, {keeps_all!r} with all tokens"


@checks("sampling.top-k.keeps")
@both_endpoints
def test_two_tokens(text: Ask) -> None:
    seen: set[str] = set()
    for seed in range(COINS):
        seen.add(text(max_tokens=1, temperature=FLAT, top_k=2, seed=seed))
        if len(seen) > 1 and seed >= FEW_COINS:
            break
    assert len(seen) == 2, f"top_k 2 gives the tokens {sorted(seen)}"


@checks("sampling.min-p.cuts")
@both_endpoints
def test_min_p_cuts(text: Ask) -> None:
    one = {"max_tokens": 1, "temperature": FLAT}
    few, all_of_them = (
        {text(**one, seed=seed, **fields) for seed in range(DRAWS)}
        for fields in ({"min_p": 0.9}, {})
    )
    assert len(few) < len(all_of_them), f"min_p 0.9 keeps {len(few)} of {len(all_of_them)} tokens"


@checks("sampling.temperature.spreads")
@both_endpoints
def test_spreads(text: Ask) -> None:
    texts = {text(temperature=HOT, seed=seed) for seed in range(DRAWS)}
    assert len(texts) > 1, f"{DRAWS} seeds all give {texts}"


@checks("sampling.order.temperature")
@both_endpoints
@pytest.mark.parametrize("cut", [{"top_p": 0.1}, {"min_p": 0.999}], ids=["top_p", "min_p"])
def test_temperature_comes_last(text: Ask, cut: dict[str, float]) -> None:
    """Before the cuts, such a temperature would let them keep many tokens."""
    seen = text(COUNTING, max_tokens=4, temperature=FLAT, seed=7, **cut)
    greedy = text(COUNTING, max_tokens=4)
    assert seen == greedy, f"{seen!r} with {cut}, the greedy text is {greedy!r}"


@checks("sampling.order.penalty")
@both_endpoints
def test_penalty_comes_first(text: Ask) -> None:
    """After a top_k of 1 there is nothing left for a penalty to change."""
    plain = text(REPEATING)
    for penalty in (3, 0.2):
        penalized = text(REPEATING, repetition_penalty=penalty)
        if penalized != plain:
            drawn = {"temperature": HOT, "top_k": 1, "seed": 7}
            seen = text(REPEATING, repetition_penalty=penalty, **drawn)
            assert seen == penalized, f"{seen!r} with top_k 1, penalized it is {penalized!r}"
            return
    pytest.skip("no penalty changes the text")


@checks("sampling.repetition-penalty.acts")
@both_endpoints
def test_penalty(text: Ask) -> None:
    plain, *penalized = (text(REPEATING, repetition_penalty=by) for by in (1, 3, 0.2))
    assert penalized != [plain] * 2, f"{plain!r} with penalties of 1, of 3 and of 0.2"


@checks("sampling.seed.same")
@both_endpoints
def test_same_seed(text: Ask) -> None:
    first, second = (text(temperature=HOT, seed=7) for _ in range(2))
    assert first == second, f"seed 7 gives {first!r} and {second!r}"


@checks("sampling.seed.whole")
@both_endpoints
def test_whole_seed(text: Ask) -> None:
    """A server that keeps 32 or 64 bits of a seed takes these for one."""
    seeds = (7, 7 + 2**32, 7 + 2**64)
    texts = [text(temperature=HOT, seed=seed) for seed in seeds]
    assert len(set(texts)) == len(texts), f"the seeds {seeds} give {texts}"


@checks("sampling.seed.streamed")
@both_endpoints
def test_streamed_seed(target: Target, text: Ask, endpoint: Endpoint) -> None:
    fields = {**endpoint.prompt(PROMPT), **NEUTRAL, "max_tokens": 8}
    seen = target.stream(endpoint, **fields, temperature=HOT, seed=7).text
    wanted = text(temperature=HOT, seed=7)
    assert seen == wanted, f"seed 7 streamed {seen!r}, gave {wanted!r}"


@checks("sampling.seed.fresh")
@both_endpoints
@pytest.mark.parametrize("seed", [ABSENT, -1, None])
def test_fresh_seed(text: Ask, seed: object) -> None:
    first = text(temperature=HOT, seed=seed)
    for _ in range(DRAWS - 1):
        if text(temperature=HOT, seed=seed) != first:
            return
    if seed != -1 and any(text(temperature=HOT, seed=-1) != first for _ in range(DRAWS)):
        pytest.skip("the server has a default seed of its own")
    raise AssertionError(f"{DRAWS} draws all give {first!r}")


@checks("sampling.endpoints")
@both_endpoints
def test_endpoints(text: Ask) -> None:
    greedy = text()
    texts = [text(temperature=HOT, seed=seed) for seed in range(1, DRAWS)]
    assert any(one != greedy for one in texts), f"seeds at temperature {HOT} all give {greedy!r}"
    again = text(temperature=HOT, seed=1)
    assert again == texts[0], f"seed 1 gives {texts[0]!r} and {again!r}"
