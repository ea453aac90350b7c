"""What a plan becomes: kernels with all their arguments set, to be launched in order.

Only the number of tokens differs from step to step, and with it how many work-items there are, and
which kernel of several that were made for more or fewer tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyopencl as cl
from attrs import evolve, frozen

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


@frozen
class ProductKernel:
    """A kernel that computes a product for a number of tokens."""

    kernel: cl.Kernel
    tokens: int
    items: tuple[int, int]
    """Work-items that have all tiles of so many tokens."""
    group: tuple[int, int, int]


@frozen(eq=False)
class ProductLaunch:
    """A matrix product."""

    kind: object
    kernels: Sequence[ProductKernel]
    """For more and more tokens."""
    norm: Launch | None = None
    """What comes before it, unless it is of one token: then the kernel does it."""

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """With the smallest group of tokens that takes all, or several of the largest."""
        if self.norm and extent.tokens > 1:
            self.norm.enqueue(queue, extent)
        fitting = (each for each in self.kernels if each.tokens >= extent.tokens)
        used = next(fitting, self.kernels[-1])
        work = *used.items, -(-extent.tokens // used.tokens)
        cl.enqueue_nd_range_kernel(queue, used.kernel, work, used.group)


@frozen(eq=False)
class ChainLaunch:
    """Products one after another: of one token in one kernel, and of more in one each."""

    kind: object
    kernel: cl.Kernel
    groups: int
    """That run side by side."""
    products: Sequence[ProductLaunch]

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """A group for each core, for one token."""
        if extent.tokens == 1:
            cl.enqueue_nd_range_kernel(queue, self.kernel, (self.groups,), (1,))
            return
        for product in self.products:
            product.enqueue(queue, extent)


@frozen(eq=False)
class AttendedLaunch:
    """Attention and the products that follow: of one token in one kernel, if it looks back little.

    With many positions to look back at, there is more to divide than heads.
    """

    kind: object
    kernel: cl.Kernel
    groups: int
    separately: Sequence[Launch]

    def enqueue(self, queue: cl.CommandQueue, extent: Extent) -> None:
        """A group for each core, for one token."""
        if extent.tokens == 1 and extent.last_position < SEGMENT:
            cl.enqueue_nd_range_kernel(queue, self.kernel, (self.groups,), (1,))
            return
        for launch in self.separately:
            launch.enqueue(queue, extent)


def separately(launch: Launch) -> Iterator[Launch]:
    """The launches that do each by itself what one may do together."""
    match launch:
        case ChainLaunch(products=launches) | AttendedLaunch(separately=launches):
            for each in launches:
                yield from separately(each)
        case ProductLaunch(norm=norm) if norm is not None:
            yield norm
            yield evolve(launch, norm=None)
        case _:
            yield launch


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
