"""The OpenCL devices of this machine, and which of them a lane runs on.

Where there is none, the error says in one line what is missing: the Python package, a driver, or
the permission to use the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog
from attrs import field, frozen

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.cache import cache_root, takes_files

_log = structlog.get_logger(__name__)

_AMD = ("AMD", "Advanced Micro Devices")
_POCL_CACHE = "POCL_CACHE_DIR"
_LEAST_RESERVE = 256 * 2**20
_KFD = Path("/dev/kfd")
"""What ROCm's driver opens to reach GPUs, beside a node for each in the folder below."""
_DRI = Path("/dev/dri")


@frozen
class Device:
    """A device and the platform that offers it."""

    platform: str
    name: str
    driver: str
    is_gpu: bool
    memory_bytes: int
    vendor: str = ""
    version: str = ""
    """Of OpenCL, as the device says it."""
    units: int = 0
    """Compute units: cores of a CPU."""
    extensions: tuple[str, ...] = ()
    most_bytes: int = 0
    """The most memory that it gives in one piece."""
    language: str = ""
    """The version of OpenCL C that it compiles."""
    group_size: int = 0
    """The most work-items of a group."""
    wave: int = 0
    """Work-items that run together; 0 where the driver doesn't say."""
    computes_halves: bool = False
    """Whether it computes in float16; kernels do not ask for it."""
    handle: Any = field(default=None, eq=False, repr=False)
    """pyopencl's own object."""

    @property
    def is_amd(self) -> bool:
        """Whether AMD made it, or its driver."""
        return any(name in text for name in _AMD for text in (self.platform, self.vendor))

    @property
    def usable_bytes(self) -> int:
        """Bytes of its memory that models can take.

        The rest is for what the driver keeps there: compiled kernels and their scratch memory,
        page tables, and on a desktop what the screen shows.
        """
        return max(0, self.memory_bytes - max(_LEAST_RESERVE, self.memory_bytes // 32))

    def facts(self, label: str) -> dict[str, object]:
        """What ``caldrix doctor`` shows of it, by names that begin with a label."""
        return {
            label: self.name,
            f"{label} platform": f"{self.platform}, {self.version}",
            f"{label} driver": self.driver,
            f"{label} memory": f"{self.memory_bytes / 2**30:.1f} GiB",
            f"{label} most in one piece": f"{self.most_bytes / 2**30:.1f} GiB",
            f"{label} compute units": self.units,
            f"{label} work-group": f"up to {self.group_size}, {self._waves}",
            f"{label} language": self.language,
            f"{label} float16 arithmetic": "yes" if self.computes_halves else "no",
            f"{label} extensions": list(self.extensions),
        }

    @property
    def _waves(self) -> str:
        return f"{self.wave} at a time" if self.wave else "not known how many at a time"


def is_installed() -> bool:
    """Whether pyopencl can be imported."""
    return find_spec("pyopencl") is not None


def pocl_cache() -> Path:
    """Where PoCL keeps what it compiles: POCL_CACHE_DIR, else a folder of the models' cache."""
    return Path(os.environ.get(_POCL_CACHE) or cache_root() / "pocl")


def devices() -> Sequence[Device]:
    """All devices of all platforms; none where no platform is installed.

    One that does not even say what it is is passed over, and logged. Needs pyopencl (see
    `is_installed`). Raises LaneUnavailable where that does not load.
    """
    try:
        import pyopencl
    except (ImportError, OSError) as error:
        raise LaneUnavailable(
            f"pyopencl does not load ({error}); pip install --force-reinstall pyopencl"
        ) from error
    # It looks at this when it is first loaded.
    os.environ[_POCL_CACHE] = str(pocl_cache())
    none_found = pyopencl.status_code.PLATFORM_NOT_FOUND_KHR
    with _passing_over("OpenCL", none_found):
        return [each for platform in pyopencl.get_platforms() for each in _devices_of(platform)]
    return ()


def _devices_of(platform: Any) -> Iterator[Device]:
    import pyopencl

    with _passing_over(platform.name, pyopencl.status_code.DEVICE_NOT_FOUND):
        for device in platform.get_devices():
            with _passing_over(platform.name):
                yield _described(platform.name, device)


@contextmanager
def _passing_over(whose: str, none_found: int | None = None) -> Iterator[None]:
    """Goes on after an error of a driver; one that says that there is nothing is none."""
    import pyopencl

    try:
        yield
    except pyopencl.Error as error:
        (record,) = error.args
        if not (hasattr(record, "code") and record.code() == none_found):
            _log.warning("opencl_driver_failed", platform=whose, error=str(error))


def _described(platform: str, device: Any) -> Device:
    import pyopencl

    extensions = tuple(sorted(device.extensions.split()))
    return Device(
        platform=platform,
        name=device.name.strip(),
        driver=device.driver_version,
        is_gpu=bool(device.type & pyopencl.device_type.GPU),
        memory_bytes=device.global_mem_size,
        vendor=device.vendor,
        version=device.version.strip(),
        units=device.max_compute_units,
        extensions=extensions,
        most_bytes=device.max_mem_alloc_size,
        language=device.opencl_c_version.strip(),
        group_size=device.max_work_group_size,
        wave=_wave_of(device),
        computes_halves="cl_khr_fp16" in extensions,
        handle=device,
    )


def _wave_of(device: Any) -> int:
    """Work-items of a wave; 0 where the driver doesn't say."""
    import pyopencl

    for name in ("wavefront_width_amd", "preferred_work_group_size_multiple"):
        try:
            return int(getattr(device, name))
        except (pyopencl.Error, AttributeError):
            # Of another maker's, or of an OpenCL before 3.0.
            continue
    return 0


def chosen(found: Sequence[Device], number: int | None, lane: str) -> Device:
    """The device of that number among a lane's, else the one with most memory.

    Raises LaneUnavailable for a number that is not there, and for no devices.
    """
    if not found:
        raise LaneUnavailable(f"the {lane} lane {missing(lane)}")
    if number is None:
        return max(found, key=lambda device: device.memory_bytes)
    if number >= len(found):
        each = ", ".join(f"{lane}:{index} ({d.name})" for index, d in enumerate(found))
        raise LaneUnavailable(f"there is no device {lane}:{number}; there are {each}")
    return found[number]


def missing(lane: str) -> str:
    """Why a lane has no device, and what to do about it."""
    if not is_installed():
        return "needs pyopencl; pip install 'caldrix[opencl]'"
    if lane == "host":
        kept = pocl_cache()
        if not takes_files(kept):
            return (
                f"finds no driver that works: PoCL keeps what it compiles in {kept}, which cannot "
                "be written; set POCL_CACHE_DIR, or CALDRIX_CACHE, to a directory that can"
            )
        return "finds no OpenCL driver for this processor; apt install pocl-opencl-icd"
    if not _KFD.exists():
        return (
            f"finds no AMD GPU, and {_KFD} is not there: the kernel's driver for it, amdgpu, is "
            "not loaded; try modprobe amdgpu (or, for a container, --device /dev/kfd --device "
            "/dev/dri), or use --backend cpu"
        )
    nodes = sorted(_DRI.glob("renderD*"))
    for closed in (_closed([_KFD]), _closed(nodes)):
        if closed is not None:
            return (
                f"may not open {closed}; usermod -aG render,video $USER gives the permission, "
                "from the next login on"
            )
    return (
        "finds no OpenCL driver for AMD GPUs; apt install rocm-opencl-runtime from AMD's repository"
    )


def _closed(nodes: Sequence[Path]) -> Path | None:
    """The first of a GPU's device nodes, if none of them may be opened."""
    if any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        return None
    return next(iter(nodes), None)
