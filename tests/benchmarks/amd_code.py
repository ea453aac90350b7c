"""Compiles the kernels for AMD processors, without one: what each takes of registers and memory.

What a GPU runs is built by clang from the same sources and definitions as at a start, for wave32
(gfx1100, a Radeon RX 7900) and wave64 (gfx942, an MI300X). A kernel that keeps values in scratch
memory, since registers do not suffice, is many times slower than it should be: that is the exit
status 1.

`just amd-code` runs it. It wants clang 17 or newer with the target amdgcn, and ROCm's device
libraries (Debian: ``apt install clang-19 rocm-device-libs``), beside a CPU device to plan for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

from attrs import frozen
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from caldrix.bench.bandwidth import usable_threads
from caldrix.errors import Refusal
from caldrix.models.lane import LaneOptions
from tests.benchmarks.script import run_script
from tests.support.random_models import random_model

_KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_FAMILIES = ("llama", "qwen3", "gemma3")
_HEAD_DIMS = (64, 128, 256)
_BITCODE = (
    Path("/opt/rocm/amdgcn/bitcode"),
    Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"),
    Path("/usr/lib/amdgcn/bitcode"),
)
_LIBRARIES = (
    "opencl", "ocml", "ockl", "oclc_unsafe_math_off", "oclc_finite_only_off", "oclc_daz_opt_off",
    "oclc_correctly_rounded_sqrt_on", "oclc_abi_version_400",
)  # fmt: skip


@frozen
class Processor:
    """What to compile for."""

    name: str
    isa: int
    """The version that ROCm's libraries call it by, in hexadecimal."""
    wave: int


PROCESSORS = (Processor("gfx1100", 0x1100, 32), Processor("gfx942", 0x942, 64))


@frozen
class Build:
    """What one program of kernels is built from."""

    sources: tuple[str, ...]
    definitions: tuple[tuple[str, int | str], ...]


@frozen
class Code:
    """What a kernel takes."""

    processor: str
    kernel: str
    build: Build
    vector_registers: int
    local_bytes: int
    scratch_bytes: int


def amd_code(
    *,
    kind: Annotated[tuple[str, ...], Parameter(negative=())] = _KINDS,
    bitcode: Path | None = None,
    every: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compile the kernels for AMD processors.

    Parameters
    ----------
    kind
        Formats of weights.
    bitcode
        The folder of ROCm's device libraries, if it is at no usual place.
    every
        Show each build, and not only the largest of each kernel.
    """
    compiler = _compiler()
    folder = bitcode or next((path for path in _BITCODE if path.is_dir()), None)
    if folder is None:
        raise Refusal(
            "ROCm's device libraries are not found; apt install rocm-device-libs, or name their "
            "folder with --bitcode"
        )
    builds = list(dict.fromkeys(each for name in kind for each in _builds(name)))
    jobs = list(product(PROCESSORS, builds))
    with ThreadPoolExecutor(usable_threads()) as pool:
        found = pool.map(lambda job: list(_compiled(compiler, folder, *job)), jobs)
        codes = [code for each in found for code in each]
    _print(codes if every else _largest(codes))
    spilled = [code for code in codes if code.scratch_bytes]
    for code in spilled:
        print(f"scratch: {code.processor} {code.kernel} {_told(code.build)}", file=sys.stderr)
    return 1 if spilled else 0


def _compiler() -> str:
    for name in ("clang", *(f"clang-{version}" for version in range(25, 16, -1))):
        path = shutil.which(name)
        if path is None:
            continue
        version = subprocess.run([path, "-dumpversion"], capture_output=True, text=True, check=True)
        if int(version.stdout.partition(".")[0]) >= 17:
            return path
    raise Refusal("clang 17 or newer is needed, with the target amdgcn; apt install clang-19")


def _builds(kind: str) -> Iterator[Build]:
    """What a GPU would be given at the start of models with matrices of a kind."""
    from caldrix_opencl.build import Builder
    from caldrix_opencl.compiled import opencl_executor
    from caldrix_opencl.context import GPU
    from caldrix_opencl.lane import HostLane

    asked: list[Build] = []
    program = Builder.program

    def noting(self: Builder, sources: Sequence[str], given: Mapping[str, int | str]) -> Any:
        shape = {"VECTOR": GPU.vector, "SPLIT": GPU.split}
        asked.append(Build(tuple(sources), tuple({**shape, **given}.items())))
        return program(self, sources, given)

    options = LaneOptions(context=512, rows=2, kv_dtype="f16", picks=True)
    for family in _FAMILIES:
        model = random_model(family, kind)
        with (
            patch.object(Builder, "program", noting),
            opencl_executor(model.program, model.weights, options, HostLane().device(), GPU),
        ):
            pass
    for build in asked:
        definitions = dict(build.definitions)
        for dim in _HEAD_DIMS if "DIM" in definitions else (None,):
            dims = {} if dim is None else {"DIM": dim}
            yield Build(build.sources, tuple({**definitions, **dims}.items()))


def _compiled(compiler: str, bitcode: Path, processor: Processor, build: Build) -> Iterator[Code]:
    kernels = files("caldrix_opencl") / "kernels"
    text = "\n".join((kernels / f"{name}.cl").read_text() for name in build.sources)
    libraries = [
        *_LIBRARIES,
        f"oclc_isa_version_{_isa(bitcode, processor):x}",
        f"oclc_wavefrontsize64_{'on' if processor.wave == 64 else 'off'}",
    ]
    with tempfile.TemporaryDirectory() as directory:
        source, assembly = Path(directory, "kernels.cl"), Path(directory, "kernels.s")
        source.write_text(text)
        run = subprocess.run(
            [
                compiler, "-x", "cl", "-cl-std=CL2.0", "--target=amdgcn-amd-amdhsa",
                f"-mcpu={processor.name}", "-nogpulib", "-mcode-object-version=4", "-O3",
                "-Xclang", "-finclude-default-header",
                *(f"-D{name}={value}" for name, value in build.definitions),
                *(
                    argument
                    for name in libraries
                    for argument in (
                        "-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(bitcode / f"{name}.bc")
                    )
                ),
                "-S", "-o", str(assembly), str(source),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            raise Refusal(f"{compiler} fails on {_told(build)}: {run.stderr.strip()}")
        # Each kernel's entry in the metadata that the assembly ends with.
        _, _, metadata = assembly.read_text().partition("amdhsa.kernels:")
        for entry in metadata.split("\n  - ")[1:]:
            names = re.findall(r"\n    \.name:\s+(\w+)", entry)
            if names:
                yield Code(
                    processor.name, names[0], build, _number(entry, "vgpr_count"),
                    _number(entry, "group_segment_fixed_size"),
                    _number(entry, "private_segment_fixed_size"),
                )  # fmt: skip


def _isa(bitcode: Path, processor: Processor) -> int:
    """The library for its version, or for the nearest before that this release has."""
    versions = [
        int(path.stem.rpartition("_")[2], 16) for path in bitcode.glob("oclc_isa_version_*.bc")
    ]
    return max(version for version in versions if version <= processor.isa)


def _number(entry: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s+(\d+)", entry)
    assert found is not None, (name, entry)
    return int(found[1])


def _largest(codes: Sequence[Code]) -> list[Code]:
    """Of each kernel, the one that takes most registers."""
    most: dict[tuple[str, str], Code] = {}
    for code in codes:
        key = code.processor, code.kernel
        if key not in most or code.vector_registers > most[key].vector_registers:
            most[key] = code
    return list(most.values())


def _told(build: Build) -> str:
    return " ".join(f"{name}={value}" for name, value in build.definitions)


def _print(codes: Sequence[Code]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("for", "kernel"):
        table.add_column(heading, no_wrap=True)
    for heading in ("registers", "local bytes", "scratch bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("built with")
    for code in codes:
        table.add_row(
            code.processor, code.kernel, str(code.vector_registers), str(code.local_bytes),
            str(code.scratch_bytes), _told(code.build),
        )  # fmt: skip
    Console(markup=False, highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    run_script(amd_code, "amd-code")
