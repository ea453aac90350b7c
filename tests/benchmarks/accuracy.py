"""Holds our logits and llama.cpp's against float32 on the same file, and their perplexities.

The reference computes in float32 with numpy from the file's own values, so what is left is what a
side loses by its arithmetic: quantized activations, half-precision caches, order of sums. The text
in data/declaration.txt is in the public domain: the United States' Declaration of Independence
(1776) and Lincoln's Gettysburg Address (1863).

`just accuracy` runs it where llama.cpp is built; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from attrs import frozen
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from caldrix.bench.bandwidth import usable_threads
from caldrix.bench.subject import LaneSubject, Subject, open_subject
from caldrix.cli.options import DtypeFlag, check_positive
from caldrix.cli.progress import TerminalProgress
from caldrix.errors import Refusal
from caldrix.models.lane import LaneOptions, TokenIds, find_lane
from caldrix.models.loading import read_text
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.tensor import Float32
from caldrix_cpu.numpy_executor import numpy_executor
from tests.benchmarks import models
from tests.benchmarks.models import Format
from tests.benchmarks.script import run_script

Model = Literal["smollm2", "gemma3-270m"]

TEXT = Path(__file__).parent / "data" / "declaration.txt"
WINDOW = 512
"""Tokens computed at once, and the context of each predicted token at most."""
CHECKED = 64
"""Positions at a window's end whose logits are compared."""


@frozen
class Accuracy:
    """One side on one file. An error is ``|a - b| / |b|`` over the logits of a position."""

    name: str
    decode: npt.NDArray[np.float64]
    """Errors of the last `CHECKED` positions, computed token by token."""
    prefill: npt.NDArray[np.float64]
    """Errors of the same positions, computed with the whole window."""
    perplexity: float


def accuracy(
    *,
    model: Model = "smollm2",
    formats: Annotated[tuple[Format, ...], Parameter(name="--format", negative=())] = (),
    dtype: DtypeFlag = "auto",
    backend: str = "auto",
    threads: int | None = None,
) -> None:
    """Compare logits and perplexity with float32's.

    Parameters
    ----------
    model
        smollm2 in several formats, or Gemma 3 as published.
    formats
        Formats to compare: all that the model has, if not given.
    dtype
        How our lane keeps the weights. The reference takes them from the file in any case.
    backend
        Our lane.
    threads
        Threads of each side.
    """
    check_positive("--threads", threads)
    offered: tuple[Format, ...] = models.FORMATS if model == "smollm2" else ("q4_k_m",)
    for each in formats:
        if each not in offered:
            raise Refusal(f"{model} comes in {', '.join(offered)}, not in {each}")
    console = Console(markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.title = f"{model}: relative error of the logits, and perplexity"
    for heading in ("", "", "decode", "worst", "prefill", "worst", "perplexity"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for each in formats or offered:
        with TerminalProgress() as progress:
            path = models.smollm2(each, progress) if model == "smollm2" else models.gemma3(progress)
        with Console(stderr=True).status(each) as status:
            for row in _compare(path, dtype, backend, threads):
                status.update(f"{each}: {row.name} is done")
                table.add_row(each, row.name, *_cells(row))
    console.print(table)


def _cells(row: Accuracy) -> Iterator[str]:
    for errors in (row.decode, row.prefill):
        yield f"{errors.mean():.2e}"
        yield f"{errors.max():.2e}"
    yield f"{row.perplexity:.4f}"


def _compare(path: Path, dtype: str, backend: str, threads: int | None) -> Iterator[Accuracy]:
    """The reference itself first: its decode is held against its own prefill."""
    windows = _windows(path)
    with _reference(path, threads) as subject:
        expected = subject.start(windows[0][None], CHECKED).astype(np.float64)
        yield _judge(subject, windows, expected)
    options = LaneOptions(context=WINDOW, threads=threads, dtype=dtype)
    with open_subject(path, find_lane(backend), options) as opened:
        yield _judge(opened.subject, windows, expected)
    try:
        from tests.benchmarks.llama_cpp_subject import llama_cpp_subject
    except ModuleNotFoundError as error:
        raise Refusal(
            f"{error.name} is not installed here; `just accuracy` makes an environment that has it"
        ) from error
    with llama_cpp_subject(path, threads=threads or usable_threads()) as peer:
        yield _judge(peer, windows, expected)


@contextmanager
def _reference(path: Path, threads: int | None) -> Iterator[Subject]:
    with open_checkpoint(path) as checkpoint:
        bound = bind(checkpoint)
        options = LaneOptions(context=WINDOW, threads=threads)
        with numpy_executor(bound.program, bound.weights, options) as executor:
            yield LaneSubject("float32 (numpy)", executor)


def _windows(path: Path) -> list[TokenIds]:
    """The text's tokens in windows, each beginning as a prompt of the model does."""
    with open_checkpoint(path) as checkpoint:
        tokenizer, _ = read_text(checkpoint)
    text = TEXT.read_text(encoding="utf-8")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.encode(text)
    start = whole[: len(whole) - len(tokens)]
    body = WINDOW - len(start)
    return [np.array(start + tokens[begin : begin + body]) for begin in range(0, len(tokens), body)]


def _judge(
    subject: Subject, windows: Sequence[TokenIds], expected: npt.NDArray[np.float64]
) -> Accuracy:
    first = windows[0]
    prefill = _errors(subject.start(first[None], CHECKED), expected)
    subject.start(first[None, :1])
    decoded = [subject.decode(first[place : place + 1])[0].copy() for place in range(1, WINDOW)]
    decode = _errors(np.stack(decoded[-CHECKED:]), expected)
    return Accuracy(subject.name, decode, prefill, _perplexity(subject, windows))


def _errors(logits: Float32, expected: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Each position's error; both are ``[positions, vocab_size]``."""
    differences = np.linalg.norm(logits - expected, axis=1)
    return np.asarray(differences / np.linalg.norm(expected, axis=1))


def _perplexity(subject: Subject, windows: Sequence[TokenIds]) -> float:
    """exp of the mean negative log-probability of every token that follows another."""
    losses = [
        _loss(logits.astype(np.float64), following)
        for window in windows
        for logits, following in zip(
            subject.start(window[None], len(window))[:-1], window[1:].tolist(), strict=True
        )
    ]
    return math.exp(sum(losses) / len(losses))


def _loss(logits: npt.NDArray[np.float64], token: int) -> float:
    top = logits.max()
    return float(top + np.log(np.exp(logits - top).sum()) - logits[token])


if __name__ == "__main__":
    run_script(accuracy, "accuracy")
