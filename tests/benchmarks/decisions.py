"""Times a request of many questions about one long state beside a request of one question.

A decider reads the state once and then each question after it, so that many questions cost little
more than one. Every request has a state that nobody has sent before; requests of one question and
of many take turns. Run nothing beside it.

`just bench-decisions` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

import httpx2
from attrs import frozen
from rich.console import Console
from rich.table import Table

from caldrix.cli.options import check_positive
from caldrix.cli.progress import TerminalProgress
from tests.benchmarks.models import DECIDER_WORDS, decider_shape
from tests.benchmarks.script import run_script
from tests.benchmarks.server import serve, served_model

_WORDS = tuple(word for word in DECIDER_WORDS if word.startswith(" "))
_PATIENCE = 600.0


@frozen
class Request:
    """What a request took, and what its usage says that was read."""

    seconds: float
    tokens: int


@frozen
class Pair:
    """A request of one question, and the next one of many."""

    one: Request
    many: Request

    @property
    def ratio(self) -> float:
        """How many times as long the many took."""
        return self.many.seconds / self.one.seconds


def decisions(*, questions: int = 20, state: int = 2000, rounds: int = 5) -> None:
    """Time many questions on one state beside one question, on random weights of decider-0.8b's
    shape.

    Parameters
    ----------
    questions
        How many are many.
    state
        Tokens of the state.
    rounds
        Pairs of requests, after one that doesn't count.
    """
    check_positive("--questions", questions)
    check_positive("--state", state)
    check_positive("--rounds", rounds)
    if questions > 64:
        raise SystemExit(f"--questions is at most 64, got {questions}")
    with TerminalProgress() as progress:
        model = decider_shape(progress)
    measured: list[Pair] = []
    with (
        serve([], str(model)) as url,
        httpx2.Client(base_url=url, trust_env=False, timeout=_PATIENCE) as client,
        Console(stderr=True).status("warming up") as status,
    ):
        name = served_model(url)
        for number in range(1 + rounds):
            if number:
                status.update(f"round {number} of {rounds}")
            random = Random(number)
            one, many = (_ask(client, name, _state(random, state), n) for n in (1, questions))
            if number:
                measured.append(Pair(one, many))
    _print(measured, questions, state)


def _state(random: Random, tokens: int) -> str:
    """A text of about so many tokens, which no other one begins like."""
    return f"{random.random():.9f}" + "".join(random.choices(_WORDS, k=tokens - 11))


def _question(number: int) -> Mapping[str, Any]:
    """A choice of three, of some 50 tokens, and a noul, of some 30, in turn."""
    kinds = ("payment", "refund", "delivery", "login", "customer", "message", "team")
    if number % 2:
        asked = f"{number % 10} is this the late {kinds[number % 7]} of a customer"
        return {"type": "noul", "instructions": asked}
    return {
        "type": "choice",
        "instructions": f"{number % 10} which team should handle this {kinds[number % 7]} problem",
        "criteria": {
            "a": " payment and refund",
            "b": " late delivery of a message",
            "c": " login problem",
        },
    }


def _ask(client: httpx2.Client, model: str, state: str, questions: int) -> Request:
    body = {
        "model": model,
        "state": state,
        "questions": {f"q{number}": _question(number) for number in range(questions)},
    }
    began = time.perf_counter()
    response = client.post("/v1/systemone", json=body)
    seconds = time.perf_counter() - began
    response.raise_for_status()
    return Request(seconds, response.json()["usage"]["input_tokens"])


def _print(measured: Sequence[Pair], questions: int, state: int) -> None:
    table = Table("questions", box=None, pad_edge=False, title_justify="left")
    table.add_column("tokens read", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.title = f"random weights of decider-0.8b's shape, a state of {state} tokens"
    for count, requests in (
        (1, [pair.one for pair in measured]),
        (questions, [pair.many for pair in measured]),
    ):
        seconds = median(request.seconds for request in requests)
        table.add_row(str(count), str(requests[0].tokens), f"{seconds:.2f}")
    ratios = [pair.ratio for pair in measured]
    table.add_row("ratio", "", f"{median(ratios):.2f} (worst {max(ratios):.2f})")
    Console(markup=False, highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    run_script(decisions, "bench-decisions")
