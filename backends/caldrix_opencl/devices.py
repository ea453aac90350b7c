"""The OpenCL devices of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from attrs import frozen


@frozen
class Device:
    """A device and the platform that offers it."""

    platform: str
    name: str
    driver: str
    is_gpu: bool
    memory_bytes: int


def is_installed() -> bool:
    """Whether pyopencl can be imported."""
    return find_spec("pyopencl") is not None


def devices() -> Sequence[Device]:
    """All devices of all platforms; none where no platform is installed.

    Needs pyopencl (see `is_installed`).
    """
    import pyopencl

    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.LogicError:
        # The loader's way of saying that it knows no platform.
        return ()
    return [
        Device(
            platform=platform.name,
            name=device.name.strip(),
            driver=device.driver_version,
            is_gpu=bool(device.type & pyopencl.device_type.GPU),
            memory_bytes=device.global_mem_size,
        )
        for platform in platforms
        for device in platform.get_devices()
    ]
