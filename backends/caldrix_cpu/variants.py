"""Which kinds of processor kernels are compiled for, and which of them this machine is."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from attrs import frozen

from caldrix_cpu.features import cpu_features


@frozen
class Variant:
    """A set of instructions that kernels may use."""

    name: str
    needs: frozenset[str]
    """Features, by the kernel's names, without which it does not run."""
    cpu: str | None
    """LLVM's name of the processor to compile for; None is the one at hand."""
    attributes: str
    """What LLVM is told of it beside its name."""
    lanes: int
    """Lanes of a register of 32-bit values."""
    group: int
    """Tokens whose accumulators a tile keeps in registers at a time."""
    fma: bool
    half: bool
    """Converts float16."""
    dot: bool = False
    """Has vpdpbusd (four products of bytes) and vdpbf16ps (two of bfloat16)."""
    x86: bool = True
    arm: bool = False


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}

_ARM = platform.machine() in ("aarch64", "arm64")
_X86 = platform.machine() in ("x86_64", "AMD64")

VARIANTS: Mapping[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            name="avx512-vnni",
            needs=_AVX512 | {"avx512_vnni", "avx512_bf16"},
            cpu="x86-64-v4",
            attributes="+avx512vnni,+avx512bf16,-prefer-256-bit",
            lanes=16,
            group=8,
            fma=True,
            half=True,
            dot=True,
        ),
        Variant(
            name="avx512",
            needs=_AVX512,
            cpu="x86-64-v4",
            attributes="-prefer-256-bit",
            lanes=16,
            group=8,
            fma=True,
            half=True,
        ),
        Variant(
            name="avx2",
            needs=_AVX2,
            cpu="x86-64-v3",
            attributes="",
            lanes=8,
            group=4,
            fma=True,
            half=True,
        ),
        Variant(
            name="generic",
            needs=frozenset(),
            cpu="x86-64" if _X86 else None,
            attributes="",
            lanes=4,
            group=4,
            fma=_ARM,
            half=_ARM,
            x86=_X86,
            arm=_ARM,
        ),
    )
}
"""Every variant by name, the fastest first."""


def executable_variants() -> tuple[Variant, ...]:
    """The variants whose code this machine can run, the fastest first."""
    present = frozenset(cpu_features())
    return tuple(variant for variant in VARIANTS.values() if variant.needs <= present)
