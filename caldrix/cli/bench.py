"""`caldrix bench`: how fast a model runs here, beside how fast the memory is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated

import attrs
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from caldrix.bench.bandwidth import MemoryReader, usable_threads
from caldrix.bench.cases import Case, Decode, Prefill, positions
from caldrix.bench.report import Report, Result, bandwidth, bandwidth_median, enqueue, results
from caldrix.bench.rounds import Spread, Watch, measure
from caldrix.bench.subject import max_context, open_subject
from caldrix.cli.options import DtypeFlag, Whole, check_positive, read_threads
from caldrix.cli.progress import TerminalProgress
from caldrix.cli.termination import ended_by_sigterm
from caldrix.errors import Refusal
from caldrix.models.lane import LaneOptions, OnDevice, find_lane
from caldrix.weights.names import DEFAULT_MODEL, resolve


def bench(
    model: str = DEFAULT_MODEL,
    /,
    *,
    prompt: Whole = 512,
    depth: Annotated[tuple[Whole, ...], Parameter(negative=())] = (32,),
    decode: Whole = 64,
    batch: Whole = 8,
    rounds: Whole = 5,
    backend: str = "auto",
    threads: str = "auto",
    dtype: DtypeFlag = "auto",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Time a model on this machine; run nothing beside it.

    pp is the prefill of a prompt, tg the decoding of one sequence, and tg8 of eight together, each
    from a given depth on. Decoding reads all weights in each step: the speed of that reading
    stands beside the memory's own, measured in the same rounds. Of a lane that gives its device a
    token's work in launches, their number and the time that enqueueing them takes are told.

    Parameters
    ----------
    model
        Any name that `caldrix serve` takes.
    prompt
        Tokens of the prompt that pp and the time to first token are measured with.
    depth
        Tokens a sequence has before decoding is timed; may be given several times.
    decode
        Tokens of each sequence that are decoded.
    batch
        Sequences decoded together; 1 leaves that out.
    rounds
        How often everything is measured, after one round that doesn't count.
    backend
        Lane to compute on: auto, or one that `caldrix doctor` lists.
    threads
        Threads to compute with: auto, or a number.
    dtype
        How the lane keeps the weights; auto is its own choice.
    as_json
        Print JSON, with each round's numbers, instead of a table.
    """
    counts = {"--prompt": prompt, "--decode": decode, "--batch": batch, "--rounds": rounds}
    for flag, count in counts.items():
        check_positive(flag, count)
    for each in depth:
        check_positive("--depth", each)
    for number, times in Counter(depth).items():
        if times > 1:
            raise Refusal(f"--depth {number} is given twice; once is enough")
    thread_count = read_threads(threads)
    lane = find_lane(backend)
    if isinstance(lane, OnDevice):
        lane.device()
    with ExitStack() as stack:
        with ended_by_sigterm(), TerminalProgress() as progress:
            resolved = resolve(model, progress)
            cases = _cases(prompt, depth, decode, batch)
            opened = stack.enter_context(
                open_subject(
                    resolved.path,
                    lane,
                    LaneOptions(
                        context=_context(cases, max_context(resolved.path), resolved.served_name),
                        rows=batch,
                        threads=thread_count,
                        dtype=dtype,
                        progress=progress,
                    ),
                )
            )
        subject, launching = opened.subject, opened.subject.launching
        cases = [case for case in cases if case.sequences <= opened.rows]
        used = subject.threads or thread_count or usable_threads()
        reader = MemoryReader(used)
        with _watched((1 + rounds) * (1 + len(cases))) as watch:
            measured = measure(subject, cases, reader, rounds, watch, launching)
        report = Report(
            model=resolved.served_name,
            path=str(resolved.path),
            lane=lane.name,
            dtype=dtype,
            threads=used,
            bytes_read_per_token=subject.bytes_read_per_token,
            device_memory=subject.device_memory,
            launches_per_token=launching.launches_per_token if launching else None,
            enqueue=enqueue(measured),
            bandwidth=bandwidth(measured),
            bandwidth_median=bandwidth_median(measured),
            results=results(
                cases,
                measured,
                subject.bytes_read_per_token,
                elsewhere=subject.device_memory is not None,
            ),
            notes=() if opened.refusal is None else (f"tg{batch} is left out: {opened.refusal}",),
        )
    if as_json:
        print(json.dumps(attrs.asdict(report), indent=2, ensure_ascii=False))
    else:
        _print(report)
    return 0


def _cases(prompt: int, depths: Sequence[int], decode: int, batch: int) -> list[Case]:
    cases: list[Case] = [Prefill(prompt)]
    for depth in depths:
        cases.append(Decode(depth, decode))
        if batch > 1:
            cases.append(Decode(depth, decode, batch))
    return cases


def _context(cases: Sequence[Case], most: int, model: str) -> int:
    """Positions that all cases fit in. Raises Refusal where the model has fewer."""
    longest = max(cases, key=positions)
    if positions(longest) > most:
        asked = (
            f"--prompt {longest.tokens}"
            if isinstance(longest, Prefill)
            else f"--depth {longest.depth} with --decode {longest.tokens}"
        )
        raise Refusal(f"{asked} is more than the {most} tokens that {model} was trained for")
    return positions(longest)


@contextmanager
def _watched(steps: int) -> Iterator[Watch]:
    """A bar on stderr that says what is being measured; nothing where that is no terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("measuring {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=steps, completed=-1)

        def watch(what: str) -> None:
            bar.update(task, description=what, advance=1)

        yield watch


def _print(report: Report) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    threads = "1 thread" if report.threads == 1 else f"{report.threads} threads"
    count = len(report.bandwidth.rounds)
    rounds = "1 round" if count == 1 else f"median of {count} rounds"
    console.print(f"{report.model}, lane {report.lane}, {threads}, dtype {report.dtype}; {rounds}")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "median", "all rounds", "weights read", "of memory"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for result in report.results:
        table.add_row(_label(result), *_cells(result))
    console.print(table)
    memory = report.bandwidth
    console.print(f"memory is read at {memory.median:.1f} GB/s ({_range(memory)})")
    if report.device_memory is not None:
        console.print(
            f"that is the processor's memory; the weights lie in that of {report.device_memory}, "
            "whose speed is not measured here"
        )
    if report.bytes_read_per_token is None:
        console.print("bytes of weights read for a token: not known, the lane doesn't say")
    else:
        console.print(f"bytes of weights read for a token: {report.bytes_read_per_token:,}")
    if report.enqueue is not None:
        spread = report.enqueue
        console.print(
            f"launches for a token: {report.launches_per_token}, enqueued in "
            f"{_digits(spread.median)} ms ({_range(spread)})"
        )
    for note in report.notes:
        console.print(note)


def _label(result: Result) -> str:
    match result.name:
        case "pp":
            return f"pp {result.tokens}"
        case "ttft":
            return f"first token after {result.tokens}"
        case name:
            return f"{name} at {result.depth}"


def _cells(result: Result) -> tuple[str, ...]:
    read, share = result.read, result.read_share
    unit = {"tokens/s": "tok/s"}.get(result.unit, result.unit)
    return (
        f"{_digits(result.value.median)} {unit}",
        _range(result.value),
        "" if read is None else f"{read.median:.1f} GB/s",
        "" if share is None else f"{share.median:.0%}",
    )


def _range(spread: Spread) -> str:
    return f"{_digits(spread.least)} to {_digits(spread.most)}"


def _digits(value: float) -> str:
    """Three digits that count; whole numbers keep all of theirs."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
