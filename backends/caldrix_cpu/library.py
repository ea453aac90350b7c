"""Machine code for a model: taken from the cache, or compiled into it by a process of its own.

numba and the compiler never enter the serving process: `caldrix_cpu.codegen.build` writes object
files, and llvmlite links them in. They lie in the cache under a key of their sources, the
compiler's version and the processor's kind, so a new release compiles anew and never runs an old
kernel. Where the cache cannot be written, they are compiled to a temporary folder at each start.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm
from attrs import frozen

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.cache import cache_root
from caldrix.weights.progress import Progress
from caldrix_cpu.object_file import read_object
from caldrix_cpu.variants import Variant

_PACKAGE = Path(__file__).parent
_SOURCES = ("codegen/*.py", "tiles/layouts.py", "tape.py", "variants.py")


@frozen(eq=False)
class Kernel:
    """A function in memory."""

    address: int
    _engine: llvm.ExecutionEngine
    """Owns the code."""

    def callable(self, arguments: int) -> Callable[..., int]:
        """The function for Python to call with so many int64; it runs without the GIL.

        It returns the function's int64, or 0 where it has none.
        """
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * arguments
        )
        function = kind(self.address)
        engine = self._engine

        def call(*values: int) -> int:
            # A place of its own for each call: several threads call at the same time.
            place, error = ctypes.c_int64(0), ctypes.c_void_p()
            status = function(ctypes.addressof(place), ctypes.addressof(error), *values)
            assert status == 0, (status, engine)
            return place.value

        return call


@cache
def cache_key(variant: Variant) -> str:
    """Names all that the machine code depends on."""
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for fact in (version("numba"), version("llvmlite"), platform.machine(), platform.system()):
        digest.update(fact.encode() + b"\0")
    return f"{variant.name}-{digest.hexdigest()[:16]}"


def load_kernels(variant: Variant, units: Sequence[str], progress: Progress) -> dict[str, Kernel]:
    """The units' functions, compiled first where they must be.

    Raises LaneUnavailable where they can't be compiled.
    """
    directory = cache_root() / "kernels" / cache_key(variant)
    found = {unit: read_object(directory / f"{unit}.kernel") for unit in units}
    missing = [unit for unit, code in found.items() if code is None]
    if missing:
        with tempfile.TemporaryDirectory(prefix="caldrix-kernels-") as temporary:
            target = directory if _is_writable(directory) else Path(temporary)
            _compile(variant, target, missing, progress)
            found.update({unit: read_object(target / f"{unit}.kernel") for unit in missing})
    kernels = {}
    for unit, code in found.items():
        if code is None:
            raise LaneUnavailable(f"the kernel {unit} cannot be read back from {directory}")
        kernels[unit] = _link(*code)
    return kernels


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _compile(variant: Variant, directory: Path, units: Sequence[str], progress: Progress) -> None:
    """Runs the compiler and tells of each unit that is done."""
    progress.begin(f"compiling kernels for {variant.name}", len(units), unit="pieces")
    command = [sys.executable, "-m", "caldrix_cpu.codegen.build", variant.name, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(  # this interpreter and this package
            [*command, *units],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=environment,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for _ in process.stdout:
                progress.advance(1)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
        if status != 0:
            errors.seek(0)
            told = errors.read().decode(errors="replace").strip().splitlines()
            raise LaneUnavailable(
                f"kernels for {variant.name} cannot be compiled: "
                f"{told[-1] if told else f'the compiler ended with status {status}'}; "
                "CALDRIX_CPU_KERNELS=numpy runs without them"
            )


def _link(symbol: str, code: bytes) -> Kernel:
    """Loads an object file. Each has an engine of its own, since symbols may be the same."""
    _initialise()
    module = llvm.parse_assembly("")
    module.triple = llvm.get_process_triple()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Kernel(engine.get_function_address(symbol), engine)


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
