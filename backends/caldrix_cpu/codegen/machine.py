"""The processor that kernels are compiled for: which instructions they may use.

`TARGET` is set once, by `caldrix_cpu.codegen.build`, before any kernel is compiled.
"""

from __future__ import annotations

from caldrix_cpu.variants import VARIANTS, Variant

TARGET: Variant = VARIANTS["generic"]


def select(variant: Variant) -> None:
    """Compiles for ``variant`` from now on."""
    global TARGET  # one process compiles for one machine
    TARGET = variant
