"""What the processor offers beyond its base instructions."""

from __future__ import annotations

from pathlib import Path

_INTERESTING = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm",
    "bf16", "sve",
)  # fmt: skip
_CPUINFO = Path("/proc/cpuinfo")


def cpu_features() -> tuple[str, ...]:
    """The vector extensions the kernel reports; empty where it reports none."""
    if not _CPUINFO.exists():
        return ()
    for line in _CPUINFO.read_text().splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            present = set(flags.split())
            return tuple(feature for feature in _INTERESTING if feature in present)
    return ()
