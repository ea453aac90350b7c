"""Computes what decoding moves and computes on a GPU, and the speed that no kernel can pass there.

From a model's shape, without weights and without the GPU: the bytes and operations of each kind of
kernel, and the time that these take at the device's published bandwidth and peak, whichever is the
longer (Williams, Waterman and Patterson, 2009: the roofline model). Launches take time beside that,
and no kernel reaches a peak, so a measured speed is below. Nothing here is measured.

`just roofline` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from attrs import frozen
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from caldrix.cli.options import check_positive
from caldrix.errors import Refusal
from caldrix.models.program import Program
from tests.benchmarks.script import run_script, table_console
from tests.benchmarks.shapes import CONFIGS, Format, Shape, layouts_of, program_of
from tests.benchmarks.work import Decoding, Work, works_of

README_MODEL: Shape = "llama-8b"
README_FORMAT: Format = "q4_k_m"
README_BOUNDS: Sequence[tuple[Format, int]] = (("bf16", 1), ("bf16", 8), ("q8_0", 1), ("q4_k_m", 1))
"""Formats, and sequences together: the hip lane takes quantized models one request at a time."""
README_DEPTH = 1024


@frozen
class Gpu:
    """A device as its maker describes it."""

    name: str
    bandwidth: float
    """Bytes a second that its memory moves."""
    flops: float
    """Float32 operations a second, a multiply and an add counted as two."""
    memory: int

    def seconds(self, work: Work) -> float:
        """The least time that a launch takes."""
        return max(work.bytes / self.bandwidth, work.flops / self.flops)


GPUS = (
    Gpu("RX 7900 XTX", 960e9, 61.4e12, 24 * 10**9),
    Gpu("Instinct MI300X", 5.3e12, 163.4e12, 192 * 10**9),
)
"""AMD's own product pages: peak memory bandwidth, and peak single precision (vector) performance.
The Radeon's counts two operations issued at once, which few kernels do."""


@frozen
class Kind:
    """All launches of a kernel in a step."""

    name: str
    launches: int
    bytes: int
    flops: int
    seconds: tuple[float, ...]
    """On each device, in their order."""


def kinds_of(works: Sequence[Work], gpus: Sequence[Gpu] = GPUS) -> list[Kind]:
    """Launches by their kernel, those that move most first."""
    by_name: dict[str, list[Work]] = {}
    for work in works:
        by_name.setdefault(work.kind, []).append(work)
    kinds = [
        Kind(
            name,
            len(each),
            sum(work.bytes for work in each),
            sum(work.flops for work in each),
            tuple(sum(map(gpu.seconds, each)) for gpu in gpus),
        )
        for name, each in by_name.items()
    ]
    return sorted(kinds, key=lambda kind: -kind.bytes)


def together(kinds: Sequence[Kind], name: str) -> Kind:
    """What all of them come to."""
    return Kind(
        name,
        sum(kind.launches for kind in kinds),
        sum(kind.bytes for kind in kinds),
        sum(kind.flops for kind in kinds),
        tuple(sum(seconds) for seconds in zip(*(kind.seconds for kind in kinds), strict=True)),
    )


def resident_bytes(program: Program, layouts: Mapping[str, str], step: Decoding) -> int:
    """Bytes of weights, and of the keys and values that the sequences hold after the step."""
    _, works = works_of(program, layouts, Decoding(0, step.depth, step.kv_bytes))
    weights = sum(work.bytes for work in works)
    cached = sum(2 * cache.kv_heads * cache.head_dim for cache in program.caches)
    return weights + step.sequences * (step.depth + 1) * step.kv_bytes * cached


def roofline(
    *,
    model: Shape = README_MODEL,
    formats: Annotated[tuple[Format, ...], Parameter(name="--format", negative=())] = (
        "bf16",
        "q8_0",
        "q4_k_m",
    ),
    depth: int = README_DEPTH,
    batch: Annotated[tuple[int, ...], Parameter(negative=())] = (1, 8),
    markdown: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Compute what decoding moves, and the speed that it cannot pass. Nothing is measured.

    Parameters
    ----------
    model
        Whose shape.
    formats
        How its weights are kept.
    depth
        Tokens that each sequence has before.
    batch
        Sequences decoded together.
    markdown
        Print the README's tables instead.
    """
    check_positive("--depth", depth)
    for sequences in batch:
        check_positive("--batch", sequences)
    if markdown:
        print("\n\n".join(readme_tables()))
        return
    program = program_of(CONFIGS[model])
    if depth >= program.max_context:
        raise Refusal(f"--depth {depth} is past the {program.max_context} positions of {model}")
    console = table_console()
    for file_format in formats:
        layouts = layouts_of(program, file_format)
        for sequences in batch:
            step = Decoding(sequences, depth)
            _print(console, f"{model} in {file_format}", program, layouts, step)


def readme_tables() -> tuple[str, str]:
    """The README's two tables: one model by kernels, and its bounds in several formats."""
    program = program_of(CONFIGS[README_MODEL])
    _, works = works_of(program, layouts_of(program, README_FORMAT), Decoding(1, README_DEPTH))
    kinds = kinds_of(works)
    rows = [_cells(kind) for kind in [*kinds, together(kinds, "a token, computed")]]
    bounds = []
    for file_format, sequences in README_BOUNDS:
        _, works = works_of(
            program, layouts_of(program, file_format), Decoding(sequences, README_DEPTH)
        )
        whole = together(kinds_of(works), "")
        title = "alone" if sequences == 1 else f"{sequences} together"
        most = [f"{sequences / seconds:,.0f}" for seconds in whole.seconds]
        bounds.append([f"{file_format.upper()}, {title}", f"{whole.bytes / 1e9:.2f} GB", *most])
    rates = (f"{gpu.name}, tokens/s" for gpu in GPUS)
    headings = ["computed, at most", "bytes a step", *rates]
    return _markdown(_HEADINGS, rows), _markdown(headings, bounds)


_HEADINGS = ["kernel", "launches", "MB", "MFLOP", "FLOP/byte", *(f"{gpu.name}, µs" for gpu in GPUS)]


def _cells(kind: Kind) -> list[str]:
    return [
        kind.name,
        str(kind.launches),
        f"{kind.bytes / 1e6:,.1f}",
        f"{kind.flops / 1e6:,.1f}",
        f"{kind.flops / kind.bytes:.2f}",
        *(f"{1e6 * seconds:,.1f}" for seconds in kind.seconds),
    ]


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = "|".join(["---", *["---:"] * (len(headings) - 1)])
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _print(
    console: Console, title: str, program: Program, layouts: Mapping[str, str], step: Decoding
) -> None:
    _, works = works_of(program, layouts, step)
    kinds = kinds_of(works)
    whole = together(kinds, "a step")
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = f"{title}, {step.sequences} at {step.depth}: computed, not measured"
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "kernel" else "right", no_wrap=True)
    for kind in (*kinds, whole):
        table.add_row(*_cells(kind))
    console.print(table)
    needed = resident_bytes(program, layouts, step)
    for gpu, seconds in zip(GPUS, whole.seconds, strict=True):
        fits = "" if needed <= gpu.memory else f", but its {gpu.memory / 1e9:.0f} GB are too few"
        console.print(f"{gpu.name}: at most {step.sequences / seconds:,.0f} tokens/s{fits}")
    console.print(f"weights, keys and values: {needed / 1e9:.2f} GB\n")


if __name__ == "__main__":
    run_script(roofline, "roofline")
