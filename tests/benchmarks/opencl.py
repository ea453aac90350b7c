"""Runs the OpenCL lanes' own kernels on any OpenCL device at hand, and says how fast they are.

A GPU of any maker will do, or a processor. The model has a published shape and random weights. Each
kernel is run many times by itself, at the same place each time, so what fits a device's caches is
read from there: small models go past the bandwidth of its memory. Then whole tokens are decoded and
prompts computed, as the engine has them. Run nothing beside it.

`just bench-opencl` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Annotated

from attrs import frozen
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from caldrix.bench.cases import Case, Decode, Prefill, Timing, positions, rate
from caldrix.bench.subject import LaneSubject
from caldrix.cli.options import check_positive
from caldrix.cli.progress import TerminalProgress
from caldrix.errors import Refusal
from caldrix.models.lane import LaneOptions
from caldrix_opencl.devices import Device, devices, is_installed
from tests.benchmarks.script import run_script, table_console
from tests.benchmarks.shapes import CONFIGS, Format, Shape, layouts_of, program_of, random_weights
from tests.benchmarks.work import Decoding, Work, works_of

SEQUENCES = 8
_TIMES = 20
"""Launches of a kernel that are timed together."""


@frozen
class KernelSpeed:
    """All launches of a kernel in a step, each timed by itself."""

    name: str
    launches: int
    bytes: int
    flops: int
    seconds: float

    @property
    def bandwidth(self) -> float:
        """GB/s."""
        return self.bytes / self.seconds / 1e9

    @property
    def rate(self) -> float:
        """GFLOP/s."""
        return self.flops / self.seconds / 1e9


@frozen
class Measured:
    """A model in one format on a device."""

    kernels: dict[int, list[KernelSpeed]]
    """By the sequences that take a token together."""
    cases: list[tuple[Case, list[Timing]]]
    launches: int
    enqueue_seconds: float
    bytes_read_per_token: int


def bench_opencl(
    *,
    device: int | None = None,
    model: Shape = "smollm2",
    formats: Annotated[tuple[Format, ...], Parameter(name="--format", negative=())] = (
        "bf16",
        "q8_0",
        "q4_k_m",
    ),
    layers: int | None = None,
    depth: int = 256,
    prompt: int = 512,
    decode: int = 64,
    rounds: int = 5,
    bandwidth: float | None = None,
) -> None:
    """Time the OpenCL lanes' kernels on a device, and whole tokens.

    Parameters
    ----------
    device
        Its number in the list that is printed first; the GPU with most memory, if not given, else
        the first device.
    model
        Whose shape.
    formats
        How its weights are kept; q4_k and q6_k have their fallbacks where a row does not divide.
    layers
        Layers, where all of them take too much memory or time.
    depth
        Tokens that a sequence has before one is decoded.
    prompt
        Tokens of the prompt that is timed.
    decode
        Tokens of each sequence that are decoded.
    rounds
        How often everything is measured, after one round that doesn't count.
    bandwidth
        The device's memory, in GB/s as its maker states it, to tell the share of it that is used.
    """
    counts = {"--depth": depth, "--prompt": prompt, "--decode": decode, "--rounds": rounds}
    for flag, count in (counts | {"--layers": layers}).items():
        check_positive(flag, count)
    if bandwidth is not None and bandwidth <= 0:
        raise Refusal(f"--bandwidth must be above 0, got {bandwidth:g}")
    console = table_console()
    used = choose(device, console)
    cases: list[Case] = [Prefill(prompt), Decode(depth, decode), Decode(depth, decode, SEQUENCES)]
    for file_format in formats:
        measured = measure(used, model, file_format, layers, cases, rounds)
        part = "" if layers is None else f", {layers} layers of it"
        report(console, f"{model}{part} in {file_format}", measured, bandwidth)


def choose(number: int | None, console: Console) -> Device:
    """The device, after a list of all. Raises Refusal for one that is not there."""
    if not is_installed():
        raise Refusal("pyopencl is not installed here; pip install 'caldrix[opencl]'")
    found = devices()
    if not found:
        raise Refusal(
            "there is no OpenCL device here: install your GPU's OpenCL driver, or "
            "pocl-opencl-icd for the processor"
        )
    for index, each in enumerate(found):
        console.print(
            f"{index}: {each.name} ({each.platform}, {each.version}, driver {each.driver}), "
            f"{each.units} compute units, {each.memory_bytes / 2**30:.1f} GiB"
        )
    if number is None:
        gpus = [each for each in found if each.is_gpu]
        return max(gpus, key=lambda each: each.memory_bytes) if gpus else found[0]
    if not 0 <= number < len(found):
        raise Refusal(f"there is no device {number}; they are listed above")
    return found[number]


def measure(
    device: Device,
    model: Shape,
    file_format: Format,
    layers: int | None,
    cases: Sequence[Case],
    rounds: int,
) -> Measured:
    """Runs everything. Raises Refusal for a model that the device has no room for."""
    from caldrix_opencl.compiled import opencl_executor

    program = program_of(CONFIGS[model], layers)
    layouts = layouts_of(program, file_format)
    context = max(map(positions, cases))
    depth = max(case.depth for case in cases)
    with TerminalProgress() as progress:
        options = LaneOptions(context=context, rows=SEQUENCES, progress=progress)
        opened = opencl_executor(program, random_weights(program, layouts), options, device)
    with opened as executor, Console(stderr=True).status(f"measuring {model} in {file_format}"):
        kernels = {}
        for sequences in (1, SEQUENCES):
            _, works = works_of(program, layouts, Decoding(sequences, depth))
            runs = [executor.launch_seconds(sequences, depth, _TIMES) for _ in range(1 + rounds)][
                1:
            ]
            seconds = [median(each) for each in zip(*runs, strict=True)]
            if len(seconds) != len(works):
                raise Refusal(
                    f"{device.name} gives too little memory in one piece for a matrix of {model}; "
                    "choose a smaller --model"
                )
            kernels[sequences] = list(_by_kernel(works, seconds))
        subject = LaneSubject(device.name, executor)
        timings = [[case.run(subject) for case in cases] for _ in range(1 + rounds)][1:]
        enqueued = [executor.enqueue_seconds() for _ in range(1 + rounds)][1:]
        return Measured(
            kernels,
            [(case, [each[index] for each in timings]) for index, case in enumerate(cases)],
            executor.launches_per_token,
            median(enqueued),
            executor.bytes_read_per_token,
        )


def _by_kernel(works: Sequence[Work], seconds: Sequence[float]) -> Iterator[KernelSpeed]:
    """Those that take longest first."""
    each: dict[str, list[tuple[Work, float]]] = {}
    for work, taken in zip(works, seconds, strict=True):
        each.setdefault(work.kind, []).append((work, taken))
    speeds = [
        KernelSpeed(
            name,
            len(launches),
            sum(work.bytes for work, _ in launches),
            sum(work.flops for work, _ in launches),
            sum(taken for _, taken in launches),
        )
        for name, launches in each.items()
    ]
    yield from sorted(speeds, key=lambda speed: -speed.seconds)


def report(console: Console, title: str, measured: Measured, bandwidth: float | None) -> None:
    """Prints the tables of one format."""
    for sequences, speeds in measured.kernels.items():
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.title = f"{title}: kernels of a step of {sequences}"
        headings = ["kernel", "launches", "µs", "GB/s", "GFLOP/s"]
        for heading in [*headings, *(["of stated"] if bandwidth else [])]:
            table.add_column(heading, justify="left" if heading == "kernel" else "right")
        for speed in speeds:
            table.add_row(*_cells(speed, bandwidth))
        console.print(table)
    for case, timings in measured.cases:
        tokens = median(rate(case, timing) for timing in timings)
        read = ""
        if case.depth:
            steps = median(case.tokens / timing.seconds for timing in timings)
            gigabytes = measured.bytes_read_per_token * steps / 1e9
            share = f", {gigabytes / bandwidth:.0%} of the stated bandwidth" if bandwidth else ""
            read = f"; weights read at {gigabytes:.1f} GB/s{share}"
        place = f" at {case.depth}" if case.depth else f" {case.tokens}"
        console.print(f"{case.name}{place}: {tokens:.1f} tokens/s{read}")
    console.print(
        f"launches a token: {measured.launches}, enqueued in "
        f"{1000 * measured.enqueue_seconds:.2f} ms\n"
    )


def _cells(speed: KernelSpeed, bandwidth: float | None) -> list[str]:
    cells = [
        speed.name,
        str(speed.launches),
        f"{1e6 * speed.seconds:,.0f}",
        f"{speed.bandwidth:.1f}",
        f"{speed.rate:.1f}",
    ]
    return cells if bandwidth is None else [*cells, f"{speed.bandwidth / bandwidth:.0%}"]


if __name__ == "__main__":
    run_script(bench_opencl, "bench-opencl")
