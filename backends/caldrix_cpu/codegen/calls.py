"""Calls of kernels that were compiled by themselves, by their address.

A model's tape names the functions of its own formats, so only those are compiled.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types

from caldrix_cpu.codegen.emit import I8, I32, I64, Emitter
from caldrix_cpu.codegen.lanes import instruction
from caldrix_cpu.codegen.matmul import MATMUL_ARGUMENTS

UNIT_ARGUMENTS = 4
"""Of a kernel that the tape calls: header, record, thread and counter."""


def _call(arguments: int) -> Any:
    """A function that calls an address with so many int64."""

    @instruction(types.void, *[types.int64] * (1 + arguments))
    def call(e: Emitter, address: ir.Value, *values: ir.Value) -> None:
        # numba's own form: a place for the result, one for an error, then the arguments.
        pointer = I8.as_pointer().as_pointer()
        kind = ir.FunctionType(I32, [pointer, pointer, *[I64] * arguments])
        function = e.b.inttoptr(address, kind.as_pointer())
        result = e.variable(ir.Constant(I8.as_pointer(), None))
        error = e.variable(ir.Constant(I8.as_pointer(), None))
        e.b.call(function, [result, error, *values])

    return call


call_matmul = _call(MATMUL_ARGUMENTS)
call_unit = _call(UNIT_ARGUMENTS)
