"""An opened device: its queue, its memory, and how kernels are cut for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl
import structlog
from attrs import evolve, frozen

from caldrix.models.lane import LaneError, LaneUnavailable
from caldrix_opencl.devices import Device, pocl_cache

_log = structlog.get_logger(__name__)

TILE = 16
"""Lanes of a kernel; see ``kernels/lanes.cl``."""
MOST_TILES = 32
"""Of a work-group."""


@frozen
class Shape:
    """How work is divided among the work-items of a device."""

    vector: int
    """Lanes of one work-item: 16 as a vector of a CPU, 1 on a GPU."""
    split: int
    """Work-items that share the columns of a product's tile."""
    heads: int
    """The most heads that a work-group attends with."""
    parts: int
    """Groups of lanes that share the columns of a norm."""
    columns: int
    """Work-items of a group for operations on single columns."""
    tokens: tuple[int, ...]
    """That a work-item computes a product for: there is a kernel for each number."""
    many: int | None = None
    """From so many tokens on a work-item computes all splits of a tile, in turn."""
    tiles: int = 1
    """Tiles that a work-group has then."""
    products: int = 0
    """The most that one kernel computes one after another, of one token."""
    patience: int = 0
    """How often a work-group of such a kernel looks whether others are done, where their parts are
    small, before it leaves all the rest to them."""

    @property
    def lanes(self) -> int:
        """Work-items that are sixteen lanes together."""
        return TILE // self.vector

    @property
    def is_vector(self) -> bool:
        """Whether a work-item is sixteen lanes by itself."""
        return self.vector == TILE


CPU = Shape(
    vector=16,
    split=1,
    heads=1,
    parts=1,
    columns=64,
    tokens=(1, 2, 4, 8),
    products=4,
    patience=20_000,
)
"""Sums of 8 tokens, in two chains each, are half the registers of a CPU with 512 bits."""
GPU = Shape(
    vector=1,
    split=8,
    heads=4,
    parts=16,
    columns=64,
    tokens=(1, 2, 4, 8, 16),
    many=16,
    tiles=4,
)
"""128 work-items a tile, at most 64 a group of heads or of tiles and 256 a norm: whole waves, of 32
or of 64. In a prefill weights are read once for 16 tokens, whose sums are all in registers."""
MOST_TOGETHER = max(*CPU.tokens, *GPU.tokens)
"""The most tokens that a work-item of any device computes a product for."""


def shape_for(device: Device) -> Shape:
    """How work is divided on a device: a GPU whose work-groups are smaller has fewer together."""
    if not device.is_gpu:
        return CPU
    most = max(1, device.group_size // TILE)
    # A group that is one wave needs no barriers, of which attention has several for each tile.
    heads = device.wave // TILE or GPU.heads
    return evolve(
        GPU,
        split=min(GPU.split, most),
        heads=min(GPU.heads, heads, most),
        parts=min(GPU.parts, most),
        tiles=min(GPU.tiles, most),
    )


@cache
def _shared(device: Any) -> cl.Context:
    """A device's one context in this process: models that follow each other share what is built."""
    return cl.Context([device])


_FULL = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)
"""How a driver says that there is no more memory, where it was just asked for some."""

_taken: Counter[Any] = Counter()
"""Bytes that contexts of this process took or were promised, by pyopencl's device.

None tells what it has left."""


def is_full(error: cl.Error) -> bool:
    """Whether that is a driver's way of saying so."""
    (record,) = error.args
    return hasattr(record, "code") and record.code() in _FULL


class DeviceFull(LaneUnavailable):
    """The driver ran out of memory, of which a context had taken so many bytes."""

    def __init__(self, device: Device, taken: int, reason: object) -> None:
        super().__init__(
            f"the memory of {device.name} is full ({reason}); choose a smaller --context, "
            "--max-batch, --prefix-rows or model"
        )
        self.taken = taken


def taken_of(device: Device) -> int:
    """Bytes of a device that models of this process have already."""
    return _taken[device.handle]


class Context:
    """Memory and a queue on a device. What it allocated goes when it is closed."""

    def __init__(self, device: Device, shape: Shape | None = None) -> None:
        self.device = device
        self.shape = shape or shape_for(device)
        self.handle = _shared(device.handle)
        self.queue = cl.CommandQueue(self.handle)
        self.lost = False
        """Whether the device has failed: nothing on it is waited for any more."""
        self._buffers: list[Any] = []
        self.taken = 0
        """Bytes that were allocated or promised."""

    @property
    def local_bytes(self) -> int:
        """Memory that a work-group can have of its own."""
        size: int = self.device.handle.local_mem_size
        return size

    def tiles_each(self, tiles: int, tokens: int) -> int:
        """Tiles of a product that a work-group has, of so many tokens together.

        On a CPU a group prepares its tokens for all of its tiles, and there are several groups for
        each core, since none is as fast as another. A group of a GPU has one.
        """
        if not self.shape.is_vector:
            return 1
        groups = self.device.units * (8 if tokens == 1 else 4)
        return min(max(tiles // groups, 1), MOST_TILES)

    def allocate(self, size: int) -> cl.Buffer:
        """Memory on the device, of no particular contents.

        Raises DeviceFull, LaneUnavailable for more than the device gives in one piece, and
        pyopencl's errors.
        """
        most = self.device.most_bytes
        if size > most:
            raise LaneUnavailable(
                f"{self.device.name} gives at most {most / 2**30:.1f} GiB in one piece, and "
                f"{size / 2**30:.1f} GiB are needed; choose a smaller --context, --max-batch or "
                "model"
            )
        size = max(size, TILE)
        try:
            buffer = self._buffer(size)
        except cl.Error as error:
            if is_full(error):
                raise DeviceFull(self.device, self.taken, error) from error
            raise
        self._buffers.append(buffer)
        self._count(size)
        return buffer

    def promise(self, size: int) -> None:
        """Has others leave so much, which is to be had by `allocate_more`."""
        self._count(size)

    def _count(self, size: int) -> None:
        self.taken += size
        _taken[self.device.handle] += size

    def allocate_more(self, size: int) -> cl.Buffer:
        """Memory for as long as somebody has it. Raises LaneError where there is no more."""
        try:
            return self._buffer(size)
        except cl.Error as error:
            if is_full(error):
                raise LaneError(f"the device's memory is full ({error})") from error
            raise

    def _buffer(self, size: int) -> cl.Buffer:
        buffer = cl.Buffer(self.handle, cl.mem_flags.READ_WRITE, size)
        # A driver may take the memory only when it is used, and in a step that is too late.
        cl.enqueue_fill_buffer(self.queue, buffer, np.zeros(1, np.uint32), 0, 4).wait()
        return buffer

    def upload(self, values: npt.NDArray[Any]) -> cl.Buffer:
        """A copy of an array on the device."""
        buffer = self.allocate(values.nbytes)
        if values.nbytes:
            cl.enqueue_copy(self.queue, buffer, np.ascontiguousarray(values))
        return buffer

    def close(self) -> None:
        """Gives all memory back, once nothing runs any more. What fails then is logged."""
        self._finish()
        for buffer in self._buffers:
            try:
                buffer.release()
            except cl.Error:
                # The others' memory may be to be had back all the same.
                self._failed("release")
        self._buffers.clear()
        _taken[self.device.handle] -= self.taken
        self.taken = 0

    def _finish(self) -> None:
        if self.lost:
            # It might never come to an end.
            return
        try:
            self.queue.finish()
        except cl.Error:
            self._failed("finish")

    def _failed(self, doing: str) -> None:
        """At the end nobody can be told by an error, which would hide the one that ended it."""
        _log.warning(
            "device_failed_at_close", device=self.device.name, doing=doing, exc_info=not self.lost
        )
        self.lost = True


@contextmanager
def starting(device: Device) -> Iterator[None]:
    """What the driver cannot do before the first step is a refusal: raises LaneUnavailable."""
    try:
        yield
    except cl.Error as error:
        damaged = "" if device.is_gpu else f", remove {pocl_cache()} if that is damaged"
        raise LaneUnavailable(
            f"the driver of {device.name} failed ({error}); try a newer one{damaged}, or "
            "--backend cpu"
        ) from error


@contextmanager
def opened(device: Device, shape: Shape | None = None) -> Iterator[Context]:
    """A context for as long as the block lasts."""
    with starting(device):
        context = Context(device, shape)
    try:
        yield context
    finally:
        context.close()
