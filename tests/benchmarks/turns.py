"""Times the first token of a conversation's second turn beside the first's.

Each round begins a conversation that nobody has had before, with a long first message, and goes on
with it. The server holds what it computed for the first turn, so the second one's prompt is nearly
all there. Run nothing beside it.

`just bench-turns` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from random import Random
from statistics import median

import httpx2
from attrs import frozen
from rich.console import Console
from rich.table import Table

from caldrix.cli.options import check_positive
from caldrix.weights.names import DEFAULT_MODEL
from tests.benchmarks.script import run_script
from tests.benchmarks.server import serve, served_model

_WORDS = ("the", "ship", "came", "to", "a", "harbour", "and", "took", "on", "coal", "for", "winter")
_ANSWER_TOKENS = 16
_FOLLOW_UP = "And what happened then?"
_PATIENCE = 120.0


@frozen
class Turns:
    """One conversation: seconds to the first token of its two turns, and tokens of its history."""

    first: float
    second: float
    history: int

    @property
    def ratio(self) -> float:
        """The second's part of the first's time."""
        return self.second / self.first


def turns(*, history: int = 1000, rounds: int = 7) -> None:
    """Time the second turn's first token beside the first turn's.

    Parameters
    ----------
    history
        About how many tokens the first turn has.
    rounds
        Conversations, after one that doesn't count.
    """
    check_positive("--history", history, least=50)
    check_positive("--rounds", rounds)
    measured: list[Turns] = []
    with (
        serve([]) as url,
        httpx2.Client(base_url=url, trust_env=False, timeout=_PATIENCE) as client,
        Console(stderr=True).status("warming up") as status,
    ):
        model = served_model(url)
        for number in range(1 + rounds):
            if number:
                status.update(f"conversation {number} of {rounds}")
            conversation = _converse(client, model, history, Random(number))
            if number:
                measured.append(conversation)
    _print(measured)


def _converse(client: httpx2.Client, model: str, history: int, random: Random) -> Turns:
    # One token a word, and no two conversations begin alike.
    story = " ".join([str(random.random()), *random.choices(_WORDS, k=history)])
    messages = [{"role": "user", "content": f"{story}. What came to the harbour?"}]
    first, text = _ask(client, model, messages)
    messages += [
        {"role": "assistant", "content": text},
        {"role": "user", "content": _FOLLOW_UP},
    ]
    second, _ = _ask(client, model, messages)
    latest, _ = client.get("/debug/requests").json()["requests"][:2]
    return Turns(first, second, latest["prompt_tokens"])


def _ask(
    client: httpx2.Client, model: str, messages: Sequence[dict[str, str]]
) -> tuple[float, str]:
    """Seconds to the first piece of the answer, and the whole of it."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": _ANSWER_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    began = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        lines = response.iter_lines()
        first = next(lines)
        seconds = time.perf_counter() - began
        events = [line.removeprefix("data: ") for line in (first, *lines) if line]
    chunks = [json.loads(event) for event in events[:-1]]
    return seconds, "".join(
        choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]
    )


def _print(measured: Sequence[Turns]) -> None:
    table = Table("turn", box=None, pad_edge=False, title_justify="left")
    table.add_column("first token after", justify="right", no_wrap=True)
    table.title = f"{DEFAULT_MODEL}: a second turn of {measured[-1].history} prompt tokens"
    table.add_row("first", f"{median(each.first for each in measured) * 1e3:.0f} ms")
    table.add_row("second", f"{median(each.second for each in measured) * 1e3:.0f} ms")
    ratios = [each.ratio for each in measured]
    table.add_row("ratio", f"{median(ratios):.3f} (worst {max(ratios):.3f})")
    Console(markup=False, highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    run_script(turns, "bench-turns")
