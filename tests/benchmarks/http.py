"""Times what clients get through HTTP beside what the lane computes, in interleaved rounds.

Each round times the lane alone and then streamed answers of `caldrix serve`, first with one
sequence, then with several, and gives a ratio for each: what is left of the lane's speed once text,
HTTP and the clients have taken their share of the same processors. Run nothing beside it.

`just bench-http` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median

import httpx2
from attrs import frozen
from rich.console import Console
from rich.table import Table

from caldrix.bench.cases import Decode, rate
from caldrix.bench.subject import LaneSubject, open_subject
from caldrix.cli.options import check_positive
from caldrix.cli.progress import TerminalProgress
from caldrix.errors import Refusal
from caldrix.models.lane import LaneOptions, find_lane
from caldrix.weights.names import DEFAULT_MODEL, resolve
from tests.benchmarks.script import run_script
from tests.benchmarks.server import serve, served_model
from tests.benchmarks.stream_clients import Address, Decoding, decode

_QUESTION = "Write a long story about a lighthouse."
_SETTLE = 0.1
"""Seconds after which no worker thread of either side spins any more."""


@frozen
class Ratio:
    """One round of a number of clients, beside as many sequences of the lane."""

    lane: float
    """Tokens a second."""
    streamed: Decoding

    @property
    def kept(self) -> float:
        """The part of the lane's speed that clients see."""
        return self.streamed.rate / self.lane


def http(
    *,
    clients: int = 8,
    tokens: int = 128,
    rounds: int = 5,
    threads: int | None = None,
    backend: str = "auto",
) -> None:
    """Time streamed answers beside the lane.

    Parameters
    ----------
    clients
        Clients at once, beside one alone.
    tokens
        Tokens of each answer.
    rounds
        How often everything is measured, after one round that doesn't count.
    threads
        Threads that the lane computes with, here and in the server; its own choice, if not given.
    backend
        The lane.
    """
    for flag, value in {"--clients": clients, "--tokens": tokens, "--rounds": rounds}.items():
        check_positive(flag, value, least=2)
    check_positive("--threads", threads)
    flags = [f"--max-batch={clients}", f"--backend={backend}", f"--threads={threads or 'auto'}"]
    with TerminalProgress() as progress:
        path = resolve(DEFAULT_MODEL, progress).path
    with serve(flags) as url:
        body = _body(url, tokens)
        depth = _prompt_tokens(url, body)
        options = LaneOptions(context=depth + tokens, rows=clients, threads=threads)
        with open_subject(path, find_lane(backend), options) as opened:
            if opened.refusal is not None:
                raise Refusal(opened.refusal)
            measured = _measure(opened.subject, _address(url), body, depth, tokens, clients, rounds)
    _print(measured, depth, tokens)


def _measure(
    subject: LaneSubject,
    address: Address,
    body: Mapping[str, object],
    depth: int,
    tokens: int,
    clients: int,
    rounds: int,
) -> dict[int, list[Ratio]]:
    """The rounds of one client and of several, after a round that isn't counted."""
    measured: dict[int, list[Ratio]] = {1: [], clients: []}
    with Console(stderr=True).status("warming up") as status:
        for number in range(1 + rounds):
            for count, kept in measured.items():
                if number:
                    status.update(f"round {number} of {rounds}, {count} at once")
                case = Decode(depth, tokens, count)
                time.sleep(_SETTLE)
                lane = rate(case, case.run(subject))
                time.sleep(_SETTLE)
                streamed = decode(address, [body] * count, tokens)
                if number:
                    kept.append(Ratio(lane, streamed))
    return measured


def _print(measured: Mapping[int, Sequence[Ratio]], depth: int, tokens: int) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    table = Table("clients", box=None, pad_edge=False, title_justify="left")
    for heading in ("lane", "streamed", "kept", "worst round", "client CPU a token"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.title = f"{DEFAULT_MODEL}: {tokens} tokens after {depth}, tokens/s"
    for clients, rounds in measured.items():
        cpu = median(each.streamed.client_cpu / (tokens * clients) for each in rounds)
        table.add_row(
            str(clients),
            f"{median(each.lane for each in rounds):.0f}",
            f"{median(each.streamed.rate for each in rounds):.0f}",
            f"{median(each.kept for each in rounds):.1%}",
            f"{min(each.kept for each in rounds):.1%}",
            f"{cpu * 1e6:.0f} µs",
        )
    console.print(table)


def _address(url: str) -> Address:
    parsed = httpx2.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


def _body(url: str, tokens: int) -> dict[str, object]:
    """A request for a long answer."""
    return {
        "model": served_model(url),
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }


def _prompt_tokens(url: str, body: Mapping[str, object]) -> int:
    """Tokens that the request's prompt has, the chat template's own among them."""
    once = {**body, "max_tokens": 1, "stream": False}
    answer = httpx2.post(f"{url}/v1/chat/completions", json=once, trust_env=False)
    usage: dict[str, int] = answer.json()["usage"]
    return usage["prompt_tokens"]


if __name__ == "__main__":
    run_script(http, "bench-http")
