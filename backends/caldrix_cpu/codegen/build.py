"""Compiles kernels to files: ``python -m caldrix_cpu.codegen.build VARIANT DIRECTORY UNIT...``

A unit is ``run``, ``work``, ``attend-f16``, ``attend-f32``, ``attend-all-bf16``,
``attend-all-f32``, ``convolve``, ``delta``, ``matmul-LAYOUT``, ``matmul-LAYOUT-exact`` or
``lookup-LAYOUT``. Each becomes
``DIRECTORY/UNIT.kernel``, and its name is printed when it is there. The compiler ends early if its
standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from caldrix_cpu.object_file import write_object
from caldrix_cpu.variants import VARIANTS


def main(arguments: list[str]) -> None:
    """Compiles the units of the command line."""
    variant, directory, *units = arguments
    target = VARIANTS[variant]
    threading.Thread(target=_end_with_input, daemon=True).start()
    # numba reads these as it is imported.
    if target.cpu is not None:
        os.environ["NUMBA_CPU_NAME"] = target.cpu
        os.environ["NUMBA_CPU_FEATURES"] = target.attributes
    os.environ["NUMBA_DISABLE_INTEL_SVML"] = "1"
    from caldrix_cpu.codegen import machine

    machine.select(target)
    from caldrix_cpu.codegen.units import compile_unit

    for unit in units:
        code = compile_unit(unit)
        write_object(Path(directory) / f"{unit}.kernel", code.symbol, code.code)
        print(unit, flush=True)


def _end_with_input() -> None:
    """Ends the process when its standard input does, which whoever asked for kernels holds open."""
    # Not through sys.stdin, whose lock the interpreter wants as it ends.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
