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
from contextlib import ExitStack
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm
from attrs import frozen

import caldrix.errors
from caldrix.models.lane import LaneUnavailable
from caldrix.weights.cache import cache_root, takes_files
from caldrix.weights.progress import Progress
from caldrix_cpu.cores import usable_cores
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
    facts = [version("numba"), version("llvmlite"), platform.machine(), platform.system()]
    if variant.cpu is None:
        facts += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    for fact in facts:
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
            target = directory if takes_files(directory) else Path(temporary)
            _compile(variant, target, missing, progress)
            found.update({unit: read_object(target / f"{unit}.kernel") for unit in missing})
    kernels = {}
    for unit, code in found.items():
        if code is None:
            raise LaneUnavailable(f"the kernel {unit} cannot be read back from {directory}")
        kernels[unit] = _link(*code)
    return kernels


def _compile(variant: Variant, directory: Path, units: Sequence[str], progress: Progress) -> None:
    """Runs compilers side by side and tells of each unit that is done."""
    progress.begin(f"compiling kernels for {variant.name}", len(units), unit="pieces")
    # -P: a file in the folder where a user happens to be must not stand in for a module.
    command = [sys.executable, "-P", "-m", "caldrix_cpu.codegen.build", variant.name]
    command.append(str(directory))
    reading, writing = os.pipe()
    with ExitStack() as stack:
        told = stack.enter_context(os.fdopen(reading))
        errors = stack.enter_context(tempfile.TemporaryFile())
        compilers: list[subprocess.Popen[bytes]] = []
        try:
            for share in _shares(units):
                compiler = subprocess.Popen(
                    [*command, *share],
                    stdout=writing,
                    stderr=errors,
                    # It ends when this end of the pipe is closed, even by this process's death.
                    stdin=subprocess.PIPE,
                    env=_environment(),
                )
                compilers.append(compiler)
                assert compiler.stdin is not None
                stack.callback(compiler.stdin.close)
            os.close(writing)
            # Ends when the last of them has closed its end of the pipe.
            for _ in told:
                progress.advance(1)
            statuses = [compiler.wait() for compiler in compilers]
        except BaseException:
            for compiler in compilers:
                compiler.kill()
                compiler.wait()
            raise
        if any(statuses):
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"the compiler ended with status {max(statuses)}"
            raise LaneUnavailable(
                f"kernels for {variant.name} cannot be compiled: {why}; "
                "CALDRIX_CPU_KERNELS=numpy runs without them"
            )


def _environment() -> dict[str, str]:
    """The compilers': it finds these packages, and none of the user's settings of numba."""
    packages = [str(Path(path).parents[1]) for path in (caldrix.errors.__file__, __file__)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    search = [*packages, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(search)}


def _shares(units: Sequence[str]) -> list[list[str]]:
    """The units for each compiler; those that have most in common go to the same one."""
    if usable_cores() == 1:
        return [list(units)]
    step = [unit for unit in units if unit in ("run", "work")]
    others = [unit for unit in units if unit not in step]
    return [share for share in (step, others) if share]


def _link(symbol: str, code: bytes) -> Kernel:
    """Loads an object file. Each has an engine of its own, since symbols may be the same."""
    _initialise()
    module = llvm.parse_assembly("")
    module.triple = llvm.get_process_triple()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise LaneUnavailable(f"the compiled kernels lack the function {symbol}")
    return Kernel(address, engine)


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
