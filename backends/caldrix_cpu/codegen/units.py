"""The kernels that are compiled by themselves, by name."""

from __future__ import annotations

from numba import types

from caldrix_cpu.codegen import step
from caldrix_cpu.codegen.attention import make_attend
from caldrix_cpu.codegen.attention_to_all import make_attend_all
from caldrix_cpu.codegen.calls import ATTEND_ARGUMENTS
from caldrix_cpu.codegen.kernel import ObjectCode, compile_object
from caldrix_cpu.codegen.lookup import LOOKUP_ARGUMENTS, make_lookup
from caldrix_cpu.codegen.matmul import MATMUL_ARGUMENTS, make_matmul
from caldrix_cpu.tiles.layouts import LAYOUTS

RUN_ARGUMENTS = 2
WORK_ARGUMENTS = 4


def compile_unit(name: str) -> ObjectCode:
    """The unit's machine code. Raises KeyError for a layout that is not one."""
    match name.split("-"):
        case ["run"]:
            return compile_object(step.run, RUN_ARGUMENTS)
        case ["work"]:
            return compile_object(step.work, WORK_ARGUMENTS, types.int64)
        case ["attend", "f16"]:
            return compile_object(make_attend(2), ATTEND_ARGUMENTS)
        case ["attend", "f32"]:
            return compile_object(make_attend(4), ATTEND_ARGUMENTS)
        case ["attend", "all", "bf16"]:
            return compile_object(make_attend_all(exact=False), ATTEND_ARGUMENTS)
        case ["attend", "all", "f32"]:
            return compile_object(make_attend_all(exact=True), ATTEND_ARGUMENTS)
        case ["matmul", layout, *exact]:
            return compile_object(
                make_matmul(LAYOUTS[layout], exact=exact == ["exact"]), MATMUL_ARGUMENTS
            )
        case ["lookup", layout]:
            return compile_object(make_lookup(LAYOUTS[layout]), LOOKUP_ARGUMENTS)
        case _:
            raise ValueError(f"there is no unit {name}")
