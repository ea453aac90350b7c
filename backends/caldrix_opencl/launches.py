"""What a plan becomes: kernels with all their arguments set, to be launched in order.

Only the number of tokens differs from step to step, and with it how many work-items there are, and
which kernel of several that were made for more or fewer tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyopencl as cl
from attrs import frozen

from caldrix_opencl.context import Shape

SEGMENT = 256
"""Positions that attention sums up by themselves."""
SEGMENTED = 8
"""Up to so many tokens, segments are computed side by side."""


@frozen
class Extent:
    """How much a step has to compute."""

    tokens: int
    slices: int = 1
    last_position: int = 0
    """None of the tokens is past it."""


class Launch(Protocol):
    """One or more kernels, ready to run."""

    @property
    def kind(self) -> object:
        """The same for launches that run the same code, so that one of them makes it ready."""
        ...

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """Runs it for so much."""
        ...


@frozen(eq=False)
class ProductLaunch:
    """A matrix product."""

    kind: object
    kernels: Mapping[int, cl.Kernel]
    tiles: int
    shape: Shape

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """With the smallest group of tokens that takes all, or several of the largest."""
        sizes = self.shape.tokens
        group = next((size for size in sizes if size >= extent.tokens), sizes[-1])
        lanes, split = self.shape.lanes, self.shape.split
        work = lanes * self.tiles, split, -(-extent.tokens // group)
        cl.enqueue_nd_range_kernel(queue, self.kernels[group], work, (lanes, split, 1))


@frozen(eq=False)
class ColumnsLaunch:
    """An operation on single columns of each token."""

    kind: object
    kernel: cl.Kernel
    columns: int
    """A multiple of the group."""
    group: int

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """A work-item for each column of each token."""
        cl.enqueue_nd_range_kernel(
            queue, self.kernel, (self.columns, extent.tokens), (self.group, 1)
        )


@frozen(eq=False)
class PartsLaunch:
    """An operation on each of some parts of each token, by sixteen lanes each or more."""

    kind: object
    kernel: cl.Kernel
    parts: int
    lanes: int
    each: int = 1
    """Groups of lanes that have a part together."""

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """Lanes for each part of each token."""
        work = self.lanes, self.parts * self.each, extent.tokens
        cl.enqueue_nd_range_kernel(queue, self.kernel, work, (self.lanes, self.each, 1))


@frozen(eq=False)
class AttendLaunch:
    """Attention: in one piece, or in segments side by side that are then merged."""

    kind: object
    whole: cl.Kernel
    segment: cl.Kernel
    merge: cl.Kernel
    heads: int
    together: int
    lanes: int

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """In segments where few tokens look back far; the bits are the same."""
        segments = extent.last_position // SEGMENT + 1
        local = self.lanes, self.together, 1
        work = self.lanes, self.heads, extent.tokens
        if extent.tokens > SEGMENTED or segments == 1:
            cl.enqueue_nd_range_kernel(queue, self.whole, work, local)
            return
        wide = self.lanes * segments, self.heads, extent.tokens
        cl.enqueue_nd_range_kernel(queue, self.segment, wide, local)
        cl.enqueue_nd_range_kernel(queue, self.merge, work, local)


@frozen(eq=False)
class SlicesLaunch:
    """An operation that takes the tokens of each slice one after another."""

    kind: object
    kernel: cl.Kernel
    work: tuple[int, ...]
    """Work-items of each slice."""
    local: tuple[int, ...]

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """All slices side by side."""
        cl.enqueue_nd_range_kernel(
            queue, self.kernel, (*self.work, extent.slices), (*self.local, 1)
        )
