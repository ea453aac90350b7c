"""Functions that become machine code, and how they are compiled to an object file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen
from numba import njit, types
from numba.core import compiler, sigutils
from numba.core.registry import cpu_target

# No wrappers and no reference counts: kernels are called by address, with plain numbers. Nothing
# may reorder a sum, so there is no fastmath.
_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}


def kernel(function: Callable[..., Any]) -> Any:
    """A function that other kernels can call."""
    return njit(**_OPTIONS)(function)


@frozen
class ObjectCode:
    """A compiled kernel and all that it calls.

    The symbol is a C function ``int32 f(void *result, void **error, int64, ...)``: the form that
    numba gives to functions; it returns 0.
    """

    symbol: str
    code: bytes


def compile_object(function: Any, arguments: int, result: types.Type = types.void) -> ObjectCode:
    """Compiles a kernel that takes so many int64."""
    signature = result(*[types.int64] * arguments)
    argument_types, return_type = sigutils.normalize_signature(signature)
    flags = compiler.Flags()
    function.targetdescr.options.parse_as_flags(flags, function.targetoptions)
    compiled = compiler.compile_extra(
        cpu_target.typing_context,
        cpu_target.target_context,
        function.py_func,
        argument_types,
        return_type,
        flags,
        {},
    )
    library = compiled.library
    return ObjectCode(compiled.fndesc.llvm_func_name, bytes(library._get_compiled_object()))
