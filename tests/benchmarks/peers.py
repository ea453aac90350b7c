"""Times this project beside llama.cpp and transformers on the same weights, in interleaved rounds.

Each round times both sides case by case, and gives a ratio for each case; the median and the worst
ratio are what to go by, since a machine's own speed drifts. Run nothing beside it.

`just bench-peers` runs it where llama.cpp is built for this machine. transformers is compared where
it is installed. With ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Literal

from attrs import frozen
from cyclopts import Parameter
from rich.console import Console

from caldrix.bench.bandwidth import MemoryReader, usable_threads
from caldrix.bench.cases import Case, Decode, Prefill, positions
from caldrix.bench.subject import LaneSubject, Subject, open_subject
from caldrix.cli.options import check_positive
from caldrix.cli.progress import TerminalProgress
from caldrix.errors import Refusal
from caldrix.models.lane import LaneOptions, find_lane
from tests.benchmarks import models
from tests.benchmarks.models import Format
from tests.benchmarks.pairs import interleave, print_alone, print_pairs
from tests.benchmarks.script import run_script

Model = Literal["smollm2", "gemma3-270m", "qwen3-0.6b-shape"]
Peer = Literal["llama.cpp", "transformers"]

_SEQUENCES = 8
_WITHOUT_THREADS = ("hip", "host")
"""Lanes whose device has threads of its own."""
_PACKAGES: dict[Peer, tuple[str, ...]] = {
    "llama.cpp": ("llama_cpp",),
    "transformers": ("torch", "transformers"),
}
_TO_INSTALL: dict[Peer, str] = {
    "llama.cpp": "`just bench-peers` makes an environment that has it",
    "transformers": f"install it with `{sys.executable} -m pip install torch transformers "
    "accelerate`",
}


_LLAMA_CPP: tuple[Peer, ...] = ("llama.cpp",)
_BOTH: tuple[Peer, ...] = ("llama.cpp", "transformers")
# What each model comes in, and who reads that.
_OFFERED: Mapping[Model, Mapping[Format, tuple[Peer, ...]]] = {
    "smollm2": {each: _BOTH if each in ("f32", "bf16") else _LLAMA_CPP for each in models.FORMATS},
    "gemma3-270m": {"q4_k_m": _LLAMA_CPP},
    "qwen3-0.6b-shape": {"q8_0": (), "bf16": ()},
}


@frozen
class _Comparison:
    """The same weights on both sides, or on ours alone."""

    title: str
    path: Path
    """What ours opens, and llama.cpp."""
    dtype: str = "auto"
    """How ours keeps the weights."""
    plain_path: Path | None = None
    """The float32 file that transformers reads, and converts itself."""
    plain_dtype: str = ""


def peers(
    *,
    model: Model = "smollm2",
    formats: Annotated[tuple[Format, ...], Parameter(name="--format", negative=())] = (),
    peer: Annotated[tuple[Peer, ...], Parameter(negative=())] = (),
    depth: Annotated[tuple[int, ...], Parameter(negative=())] = (),
    rounds: int = 5,
    threads: int | None = None,
    backend: str = "auto",
) -> None:
    """Time caldrix beside its peers.

    Parameters
    ----------
    model
        smollm2 in several formats, Gemma 3 as published, or random weights of Qwen3-0.6B's shape
        (ours alone).
    formats
        Formats to compare: all that the model has, if not given.
    peer
        Who to compare with: all that are installed, if not given.
    depth
        Depths to decode one sequence at, beside 32.
    rounds
        How often everything is measured, after one round that doesn't count.
    threads
        Threads of each side; as many as there are processors, if not given. The OpenCL lanes have
        no such choice.
    backend
        Our lane: one that `caldrix doctor` lists.
    """
    check_positive("--rounds", rounds)
    check_positive("--threads", threads)
    for one in depth:
        check_positive("--depth", one)
    used = threads or usable_threads()
    own = threads if backend.partition(":")[0] in _WITHOUT_THREADS else used
    console = Console(markup=False, highlight=False, soft_wrap=True)
    chosen = _choose(model, formats, peer, console)
    cases: list[Case] = [Prefill(), Decode(), *map(Decode, depth), Decode(sequences=_SEQUENCES)]
    reader = MemoryReader(used)
    for file_format, others in chosen.items():
        comparison = _prepare(model, file_format, others)
        with _ours(comparison, cases, own, backend, console) as (subject, fitting):
            if not others:
                print_alone(console, comparison.title, subject, fitting, reader, rounds)
            for each in others:
                with _theirs(each, comparison, fitting, used) as other:
                    pairs = interleave(subject, other, fitting, reader, rounds)
                print_pairs(console, comparison.title, subject, other, fitting, pairs)


def _choose(
    model: Model, formats: Sequence[Format], asked: Sequence[Peer], console: Console
) -> dict[Format, list[Peer]]:
    """Who is compared in which format. Raises Refusal for what was asked for and can't be."""
    offered = _OFFERED[model]
    for each in formats:
        if each not in offered:
            raise Refusal(f"{model} comes in {', '.join(offered)}, not in {each}")
    chosen = {each: offered[each] for each in formats or offered}
    possible = {peer for readers in chosen.values() for peer in readers}
    for peer in asked:
        if peer not in possible:
            raise Refusal(f"{model} in {', '.join(chosen)} is not compared with {peer}")
    there = [
        peer
        for peer in _PACKAGES
        if peer in possible and (not asked or peer in asked) and _is_there(peer, asked, console)
    ]
    if possible and not there:
        raise Refusal("there is nobody here to compare with")
    for each, readers in chosen.items():
        if readers and not set(readers) & set(there):
            console.print(f"without {each}: {' and '.join(there)} is not compared in it")
    return {
        each: [peer for peer in there if peer in readers]
        for each, readers in chosen.items()
        if not readers or set(readers) & set(there)
    }


def _is_there(peer: Peer, asked: Sequence[Peer], console: Console) -> bool:
    """Whether a peer is installed. Raises Refusal for one that is not, and was asked for."""
    missing = [name for name in _PACKAGES[peer] if importlib.util.find_spec(name) is None]
    if not missing:
        return True
    if asked:
        raise Refusal(f"{missing[0]} is not installed here; {_TO_INSTALL[peer]}")
    console.print(f"without {peer}: {missing[0]} is not installed here; {_TO_INSTALL[peer]}")
    return False


def _prepare(model: Model, file_format: Format, used: Sequence[Peer]) -> _Comparison:
    """The comparison, with its files made."""
    with TerminalProgress() as progress:
        match model:
            case "gemma3-270m":
                return _Comparison(f"Gemma 3 270M, {file_format}", models.gemma3(progress))
            case "qwen3-0.6b-shape":
                title = f"Qwen3-0.6B's shape, {file_format}"
                return _Comparison(title, models.qwen3_shape(progress), file_format)
            case "smollm2":
                title = f"SmolLM2-135M, {file_format}"
                path = models.smollm2(file_format, progress)
                if "transformers" not in used:
                    return _Comparison(title, path)
                plain = models.smollm2("f32", progress)
                return _Comparison(title, path, plain_path=plain, plain_dtype=file_format)


@contextmanager
def _ours(
    comparison: _Comparison,
    cases: Sequence[Case],
    threads: int | None,
    backend: str,
    console: Console,
) -> Iterator[tuple[LaneSubject, list[Case]]]:
    """Our side, and the cases that its lane takes."""
    with ExitStack() as stack:
        with TerminalProgress() as progress:
            options = LaneOptions(
                context=max(map(positions, cases)),
                rows=_SEQUENCES,
                threads=threads,
                dtype=comparison.dtype,
                progress=progress,
            )
            opened = stack.enter_context(open_subject(comparison.path, find_lane(backend), options))
        if opened.refusal is not None:
            console.print(f"without tg{_SEQUENCES}: {opened.refusal}")
        yield opened.subject, [case for case in cases if case.sequences <= opened.rows]


@contextmanager
def _theirs(
    peer: Peer, comparison: _Comparison, cases: Sequence[Case], threads: int
) -> Iterator[Subject]:
    if peer == "llama.cpp":
        from tests.benchmarks.llama_cpp_subject import llama_cpp_subject

        context = max(map(positions, cases))
        with llama_cpp_subject(comparison.path, threads=threads, context=context) as subject:
            yield subject
    else:
        from tests.benchmarks.transformers_subject import Transformers

        assert comparison.plain_path is not None
        yield Transformers(comparison.plain_path, comparison.plain_dtype, threads)


if __name__ == "__main__":
    run_script(peers, "bench-peers")
