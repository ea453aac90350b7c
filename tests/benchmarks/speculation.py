"""Times decoding with n-gram lookup beside plain decoding, in interleaved rounds.

Each round answers the same requests twice on one model: plainly, and with guesses. Text that
repeats its prompt should gain, and prose should lose next to nothing. One speculator serves all
rounds and texts, as a server's does. The answers are compared, too: they must be the same. Run
nothing beside it.

`just bench-speculation` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median

import trio
from attrs import frozen
from rich.console import Console
from rich.table import Table

from caldrix.cli.options import check_positive
from caldrix.cli.progress import TerminalProgress
from caldrix.engine.engine import GenerationRequest, running_engine
from caldrix.engine.speculation.ngram import NgramProposer, SuffixLengths
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.speculation.tuner import Tuner
from caldrix.models.lane import find_lane
from caldrix.models.loading import TextModel, load_model
from caldrix.weights.names import DEFAULT_MODEL, resolve
from tests.benchmarks.script import run_script

_CONTEXT = 2048
_CITIES = """\
| city | country | inhabitants |
|---|---|---|
| Berlin | Germany | 3645000 |
| Madrid | Spain | 3223000 |
| Rome | Italy | 2873000 |
| Paris | France | 2161000 |
| Vienna | Austria | 1897000 |
| Hamburg | Germany | 1841000 |
| Warsaw | Poland | 1790000 |
| Budapest | Hungary | 1752000 |
"""
_TEXTS: Mapping[str, str] = {
    "table to copy": f"Copy this table:\n\n{_CITIES}",
    "prose": "Write a short essay about the history of maps.",
}


@frozen
class Answer:
    """One answer's tokens, and how fast they came."""

    tokens: tuple[int, ...]
    rate: float
    """Tokens a second, after the first."""
    proposed: int
    accepted: int


@frozen
class Pair:
    """The same request, answered plainly and with guesses."""

    plain: Answer
    guessed: Answer

    @property
    def ratio(self) -> float:
        """How many times as fast the guesses made it."""
        return self.guessed.rate / self.plain.rate


def speculation(
    *,
    tokens: int = 192,
    rounds: int = 7,
    threads: int | None = None,
    backend: str = "auto",
) -> None:
    """Time decoding with n-gram lookup beside plain decoding.

    Parameters
    ----------
    tokens
        Tokens of each answer.
    rounds
        How often everything is measured, after one round that doesn't count.
    threads
        Threads that the lane computes with; its own choice, if not given.
    backend
        The lane.
    """
    for flag, value in {"--tokens": tokens, "--rounds": rounds}.items():
        check_positive(flag, value, least=2)
    check_positive("--threads", threads)
    with ExitStack() as stack:
        with TerminalProgress() as progress:
            path = resolve(DEFAULT_MODEL, progress).path
            lane = find_lane(backend)
            model = stack.enter_context(
                load_model(path, lane=lane, context=_CONTEXT, threads=threads, progress=progress)
            )
        _print(trio.run(_measure, model, tokens, rounds), tokens)


async def _measure(model: TextModel, tokens: int, rounds: int) -> Mapping[str, Sequence[Pair]]:
    """Pairs by text. Who comes first changes from round to round."""
    proposer = NgramProposer(SuffixLengths())
    speculator = Speculator(proposer, Tuner(proposer.kinds))
    measured: dict[str, list[Pair]] = {text: [] for text in _TEXTS}
    with Console(stderr=True).status("warming up") as status:
        for number in range(1 + rounds):
            for text, pairs in measured.items():
                if number:
                    status.update(f"round {number} of {rounds}: {text}")
                answers = {}
                for guesses in (True, False) if number % 2 else (False, True):
                    answers[guesses] = await _answer(
                        model, _TEXTS[text], tokens, speculator if guesses else None
                    )
                assert answers[True].tokens == answers[False].tokens
                if number:
                    pairs.append(Pair(plain=answers[False], guessed=answers[True]))
    return measured


async def _answer(
    model: TextModel, text: str, tokens: int, speculator: Speculator | None
) -> Answer:
    assert model.template is not None
    prompt = model.tokenizer.encode_prompt(
        model.template.render([{"role": "user", "content": text}])
    )
    request = GenerationRequest(tuple(prompt), tokens)
    async with (
        running_engine(model.executor, context=model.context, speculator=speculator) as engine,
        engine.submit(request) as generation,
    ):
        came = tuple([token async for token in generation])
        timeline = generation.timeline
    assert timeline.first_token is not None
    assert timeline.last_token is not None
    seconds = timeline.last_token - timeline.first_token
    return Answer(
        came, (len(came) - 1) / seconds, timeline.proposed_tokens, timeline.accepted_tokens
    )


def _print(measured: Mapping[str, Sequence[Pair]], tokens: int) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    table = Table("text", box=None, pad_edge=False, title_justify="left")
    for heading in ("plain", "with lookup", "ratio", "worst round", "proposed", "accepted"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.title = f"{DEFAULT_MODEL}: {tokens} tokens, greedy, tokens/s"
    for text, pairs in measured.items():
        table.add_row(
            text,
            f"{median(each.plain.rate for each in pairs):.0f}",
            f"{median(each.guessed.rate for each in pairs):.0f}",
            f"{median(each.ratio for each in pairs):.2f}",
            f"{min(each.ratio for each in pairs):.2f}",
            f"{median(each.guessed.proposed for each in pairs):.0f}",
            f"{median(each.guessed.accepted for each in pairs):.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    run_script(speculation, "bench-speculation")
