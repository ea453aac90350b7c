"""How each weight is kept in memory: as its file has it, or as ``--dtype`` asks."""

from __future__ import annotations

from attrs import frozen

from caldrix.weights.blocks import is_quantized
from caldrix.weights.tensor import Tensor
from caldrix_cpu import tape
from caldrix_cpu.tiles import bf12
from caldrix_cpu.tiles.floats import narrowest_exact
from caldrix_cpu.tiles.layouts import LAYOUTS, QuantLayout, padded

_WORTHWHILE = 0.1
"""Share of blocks in 12 bits under which the headers and the branches cost more than they save."""

_QUANTIZING = ("q8_0", "q4_1")


@frozen
class Format:
    """A layout, and whether activations stay in float32 where its weights are bfloat16."""

    layout: str
    exact: bool = False

    @property
    def kind(self) -> int:
        """The activations that its kernel reads."""
        if isinstance(LAYOUTS[self.layout], QuantLayout):
            return tape.KIND_Q8
        if self.layout in ("BF16", "BF12") and not self.exact:
            return tape.KIND_BF16
        return tape.KIND_F32

    @property
    def unit(self) -> str:
        """The kernel's name."""
        exact = self.exact and self.layout in ("BF16", "BF12")
        return f"matmul-{self.layout}" + ("-exact" if exact else "")

    @property
    def halves(self) -> bool:
        """Whether the kernel reads activations' sums of 16 columns."""
        layout = LAYOUTS[self.layout]
        return isinstance(layout, QuantLayout) and layout.group == 16

    def is_of(self, dtype: str) -> bool:
        """Whether it is what a ``dtype`` that quantizes asks for; true for those that don't."""
        return dtype not in _QUANTIZING or self.layout == dtype.upper()

    def columns(self, width: int) -> int:
        """Columns of activations of that width, padded as the layout is."""
        return width if self.kind == tape.KIND_Q8 else padded(width, 4)


def choose_format(tensor: Tensor, dtype: str, *, dot: bool, compressed: bool = True) -> Format:
    """How a matrix is kept. ``dot``: the machine multiplies bfloat16 by itself.

    Without ``compressed`` bfloat16 stays as it is: more to read, and less to compute.
    """
    columns = tensor.shape[-1]
    name = tensor.format.name
    if dtype == "auto":
        if is_quantized(tensor.format):
            return Format(name)
        if name == "BF16":
            return _bfloat(tensor, exact=not dot, compressed=compressed)
        return _exact(tensor, compressed)
    if dtype == "f32":
        return Format("F32") if is_quantized(tensor.format) else _exact(tensor, compressed)
    if dtype in _QUANTIZING:
        layout = LAYOUTS[dtype.upper()]
        if isinstance(layout, QuantLayout) and layout.takes(columns):
            return Format(layout.name)
    return _bfloat(tensor, exact=not dot, compressed=compressed)


def _exact(tensor: Tensor, compressed: bool) -> Format:
    """The smallest float layout that holds every value of a tensor, read in float32."""
    name = narrowest_exact(tensor)
    if name == "BF16":
        return _bfloat(tensor, exact=True, compressed=compressed)
    return Format(name)


def _bfloat(tensor: Tensor, *, exact: bool, compressed: bool) -> Format:
    """In 12 bits, if it may be, where enough blocks fit for it to be smaller."""
    fits = (
        compressed
        and bf12.takes(tensor.shape[-1])
        and (bf12.measure([bf12.Part(tensor)]).share_that_fits > _WORTHWHILE)
    )
    return Format("BF12" if fits else "BF16", exact)
