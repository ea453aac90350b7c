"""One kernel for every size of a group of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.kernel import kernel


def by_group(make: Callable[[int], Any]) -> Any:
    """``tile(group, ...)``: the kernel that ``make`` gives for a group of so many tokens."""
    most = machine.TARGET.group
    tile_1, tile_2, tile_4, tile_most = make(1), make(2), make(4), make(most)

    @kernel
    def tile(group: int, *arguments: int) -> None:
        if group == most:
            tile_most(*arguments)
        elif group == 4:
            tile_4(*arguments)
        elif group == 2:
            tile_2(*arguments)
        else:
            tile_1(*arguments)

    return tile
