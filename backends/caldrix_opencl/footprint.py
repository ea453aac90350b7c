"""What a model takes of a device's memory, and what context fits into it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from caldrix.models.lane import ContextUnavailable, LaneOptions
from caldrix.models.program import Attend, Convolve, DeltaRule, Program, Rope
from caldrix.weights.tensor import Tensor
from caldrix_cpu.memory import LEAST_CONTEXT, Needs, available_memory, require_memory
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.assemble import record_floats
from caldrix_opencl.context import MOST_TOGETHER, taken_of
from caldrix_opencl.devices import Device
from caldrix_opencl.executor import MOST_LOGITS, ROOM
from caldrix_opencl.picks import picker_bytes
from caldrix_opencl.plan import Plan
from caldrix_opencl.products import COUNTERS
from caldrix_opencl.rows import CacheLayout, state_bytes
from caldrix_opencl.weights import matrix_bytes, other_bytes, products

_SMALLER = "choose a smaller model, fewer bits a weight (--dtype q8_0, q4_1), or --backend cpu"


@frozen(eq=False)
class Footprint:
    """Bytes of all buffers of a model on a device."""

    program: Program
    options: LaneOptions
    kv_dtype: str
    fixed: int
    """Weights, and what steps are computed in, whatever the context."""

    @classmethod
    def of(
        cls,
        program: Program,
        plan: Plan,
        weights: Mapping[str, Tensor],
        options: LaneOptions,
        kv_dtype: str,
    ) -> Footprint:
        """That of a plan."""
        matrices = sum(matrix_bytes(product, weights) for product in products(plan))
        logits = padded(program.vocab_size, TILE_ROWS) * (MOST_LOGITS + MOST_TOGETHER)
        # And each token's place and slice, which logits are wanted, and what chains count.
        steps = 4 * (plan.floats * ROOM + logits) + 24 * ROOM + 4 * (MOST_LOGITS + COUNTERS)
        fixed = matrices + other_bytes(plan, weights) + steps
        return cls(program, options, kv_dtype, fixed)

    def layouts(self, context: int) -> Sequence[CacheLayout]:
        """Those of the caches of rows of so many positions."""
        return [CacheLayout.of(cache, context, self.kv_dtype) for cache in self.program.caches]

    def row_bytes(self, context: int) -> int:
        """Of one row's keys, values and states."""
        states = sum(map(state_bytes, remembering(self.program)))
        return states + sum(2 * layout.row_bytes for layout in self.layouts(context))

    def growing(self, context: int) -> int:
        """Of all that grows with the context."""
        frequencies = {
            operation.frequencies
            for operation in self.program.operations
            if isinstance(operation, Rope)
        }
        angles = 2 * 4 * context * sum(map(len, frequencies))
        rows = self.options.most_rows * self.row_bytes(context)
        return rows + angles + 4 * self.record_floats(context) + self._picking(context)

    def _picking(self, context: int) -> int:
        if not self.options.picks:
            return 0
        return picker_bytes(self.program.vocab_size, most_picks(self.options), context)

    def record_floats(self, context: int) -> int:
        """Floats for the segments of attention of the layer that has most."""
        layouts = self.layouts(context)
        return max(
            (
                record_floats(each.heads, layouts[each.cache].head_dim, context)
                for each in self.program.operations
                if isinstance(each, Attend)
            ),
            default=0,
        )

    def require(self, device: Device) -> None:
        """Raises LaneUnavailable if it is more than a device has, and says what context fits."""
        options = self.options
        if device.is_gpu:
            # What others in this process were promised is counted as taken.
            has: int | None = max(0, device.usable_bytes - taken_of(device))
            options = evolve(options, reserved=0)
        else:
            has = available_memory()
        needs = Needs(self.fixed, self.growing)
        # What other programs have of it no device tells: then the driver runs out, and says so.
        remedy = "choose a smaller model" if not device.is_gpu else _SMALLER
        undivided = self._most_undivided(device)
        if LEAST_CONTEXT <= undivided < options.context:
            require_memory(needs, evolve(options, context=undivided), has, remedy=remedy)
            raise ContextUnavailable(
                f"{device.name} gives at most {device.most_bytes / 2**30:.1f} GiB in one piece, "
                f"and a layer's keys for a context of {options.context} tokens take more; "
                f"--context {undivided} fits",
                undivided,
            )
        require_memory(needs, options, has, remedy=remedy)

    def fitting(self, size: int) -> int:
        """The longest context, up to the one asked for, that so many bytes have room for."""
        left = size - self.fixed
        return bisect_right(range(self.options.context + 1), left, key=self.growing) - 1

    def _most_undivided(self, device: Device) -> int:
        """The longest context, up to the one asked for, of which a device gives each buffer."""

        def largest(context: int) -> int:
            caches = [self.options.rows * each.row_bytes for each in self.layouts(context)]
            return max([4 * self.record_floats(context), *caches])

        most = range(self.options.context + 1)
        return bisect_right(most, device.most_bytes, key=largest) - 1


def most_picks(options: LaneOptions) -> int:
    """Tokens that are picked in one go: one for each row, and only so many at a time."""
    return min(options.rows, MOST_LOGITS)


def remembering(program: Program) -> list[Convolve | DeltaRule]:
    """The operations with a state, in the order of their states."""
    each = [item for item in program.operations if isinstance(item, Convolve | DeltaRule)]
    return sorted(each, key=lambda operation: operation.state)
