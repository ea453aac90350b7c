"""The kernels that are compiled by themselves, by name."""

from __future__ import annotations

from numba import types

from caldrix_cpu.codegen import step
from caldrix_cpu.codegen.attention import make_attend
from caldrix_cpu.codegen.attention_to_all import make_attend_all
from caldrix_cpu.codegen.calls import UNIT_ARGUMENTS
from caldrix_cpu.codegen.convolve import convolve
from caldrix_cpu.codegen.delta_rule import make_delta_rule
from caldrix_cpu.codegen.kernel import ObjectCode, compile_object
from caldrix_cpu.codegen.lookup import LOOKUP_ARGUMENTS, make_lookup
from caldrix_cpu.codegen.matmul import MATMUL_ARGUMENTS, make_matmul
from caldrix_cpu.tiles.layouts import LAYOUTS

RUN_ARGUMENTS = 2
WORK_ARGUMENTS = 4


def compile_unit(name: str) -> ObjectCode:
    """The unit's machine code. Raises ValueError for a name that is no unit's."""
    match name.split("-"):
        case ["run"]:
            return compile_object(step.run, RUN_ARGUMENTS)
        case ["work"]:
            return compile_object(step.work, WORK_ARGUMENTS, types.int64)
        case ["attend", "f16"]:
            return compile_object(make_attend(2), UNIT_ARGUMENTS)
        case ["attend", "f32"]:
            return compile_object(make_attend(4), UNIT_ARGUMENTS)
        case ["attend", "all", "bf16"]:
            return compile_object(make_attend_all(exact=False), UNIT_ARGUMENTS)
        case ["attend", "all", "f32"]:
            return compile_object(make_attend_all(exact=True), UNIT_ARGUMENTS)
        case ["convolve"]:
            return compile_object(convolve, UNIT_ARGUMENTS)
        case ["delta"]:
            return compile_object(make_delta_rule(), UNIT_ARGUMENTS)
        case ["matmul", layout, *exact] if layout in LAYOUTS and exact in ([], ["exact"]):
            return compile_object(make_matmul(LAYOUTS[layout], exact=bool(exact)), MATMUL_ARGUMENTS)
        case ["lookup", layout] if layout in LAYOUTS:
            return compile_object(make_lookup(LAYOUTS[layout]), LOOKUP_ARGUMENTS)
        case _:
            raise ValueError(f"there is no unit {name}")
