"""A Program's operations drawn together into what is launched at once, and where values lie.

Projections of one input become one product; a sum that follows a product or a norm becomes a part
of it, as does the gate that follows two projections. Head norms and rotary embeddings before
attention are one launch with putting keys and values into the cache. Every value has a place in
one arena: columns of a matrix with a row for each token, whose memory is used again once nobody
reads it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import evolve, frozen

from caldrix.models.program import (
    Add,
    Attend,
    Convolve,
    DeltaRule,
    Embed,
    Gate,
    Linear,
    Logits,
    Operation,
    Part,
    Program,
    ProgramError,
    RmsNorm,
    Rope,
    Select,
    Value,
    inputs,
)
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded

_ALIGNED = 64
"""Floats that a value's place is a multiple of."""


@frozen
class Place:
    """Where a value lies: in a matrix of the arena that has a row for each token."""

    matrix: int
    """Where the matrix begins, in floats for each token that the arena has room for."""
    column: int
    stride: int
    """Floats from one token to the next."""

    def at(self, tokens: int) -> int:
        """The value's first float, in an arena for so many tokens."""
        return self.matrix * tokens + self.column


@frozen
class Product:
    """Projections of one input, in one layout, side by side."""

    parts: tuple[Linear | Logits, ...]
    layout: str
    add: Add | None = None
    """What is added to the result, if there is one part alone."""
    gate: Gate | None = None
    """What the result is for, if there are two parts: the first is the gate."""
    norm: RmsNorm | None = None
    """What makes the input, if it is for this product alone."""

    @property
    def x(self) -> Value:
        """The input."""
        return self.parts[0].x

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each part, in whole tiles."""
        return tuple(padded(part.out.width, TILE_ROWS) for part in self.parts)


@frozen
class Norm:
    """A norm, and what is added to it."""

    operation: RmsNorm
    add: Add | None = None


@frozen
class Turn:
    """What precedes attention: norms and rotary embeddings, and the cache's keys and values."""

    attend: Attend
    q: Value
    """Queries as they are before; those that are attended with are written."""
    k: Value
    ropes: tuple[Rope, Rope] | None = None
    """Of queries and of keys, with the same angles."""
    norms: tuple[RmsNorm | None, RmsNorm | None] = (None, None)


Item: TypeAlias = (
    Product | Norm | Turn | Rope | Attend | Gate | Add | Part | Convolve | DeltaRule | Select
)


@frozen(eq=False)
class Plan:
    """What is launched, in order."""

    begin: Embed
    before: tuple[Item, ...]
    """Of all tokens."""
    after: tuple[Item, ...]
    """Of those whose logits are asked for: the first picks them."""
    places: Mapping[Value, Place]
    floats: int
    """The arena's size for each token."""


def make_plan(program: Program, layout_of: Callable[[str], str]) -> Plan:
    """The plan of a Program; ``layout_of`` tells how the weight of a name is kept."""
    begin, *operations = program.operations
    assert isinstance(begin, Embed), f"a Program does not begin with {begin}"
    items = list(_with_norms(list(_Fusing(operations, layout_of).items())))
    cut = next((index for index, item in enumerate(items) if isinstance(item, Select)), None)
    assert cut is not None, "a Program selects the tokens whose logits are asked for"
    places, floats = _places(begin, items)
    return Plan(begin, tuple(items[:cut]), tuple(items[cut:]), places, floats)


def results(item: Item) -> tuple[Value, ...]:
    """The values that an item writes, and that are written for the first time."""
    match item:
        case Product():
            return *_products(item), *((item.norm.out,) if item.norm else ())
        case Norm(add=Add(out=out)):
            return (out,)
        case Norm():
            return (item.operation.out,)
        case Turn():
            return () if item.ropes is None else (item.attend.q,)
        case _:
            return (item.out,)


def _products(item: Product) -> tuple[Value, ...]:
    match item:
        case Product(gate=Gate(out=out)) | Product(add=Add(out=out)):
            return (out,)
        case _ if is_logits(item):
            return ()
        case _:
            return tuple(part.out for part in item.parts)


def residual(item: Product | Norm) -> Value | None:
    """The value that an item adds to its own."""
    if item.add is None:
        return None
    own = item.parts[0].out if isinstance(item, Product) else item.operation.out
    return item.add.b if item.add.a == own else item.add.a


def is_logits(item: Item) -> bool:
    """Whether an item's result is the step's, and lies in no arena."""
    return isinstance(item, Product) and isinstance(item.parts[0], Logits)


def runs(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    """The items in order; those together that follow one another and may share a kernel.

    That are up to ``most`` products of one layout, and the attention before them; none for 0.
    """
    run: list[Item] = []
    for item in items:
        if run and not _goes_on(run, item, most):
            yield from _whole(run)
            run = []
        run.append(item)
    yield from _whole(run)


def _goes_on(run: Sequence[Item], item: Item, most: int) -> bool:
    products = [each for each in run if isinstance(each, Product)]
    match run[-1], item:
        case Turn(), Attend():
            return most > 0
        case Attend(), Product():
            return len(run) == 2
        case Product() as before, Product():
            return before.layout == item.layout and len(products) < most and not is_logits(item)
        case _:
            return False


def _whole(run: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The run, or its items if it is attention alone."""
    if any(isinstance(item, Product) for item in run):
        yield run
    else:
        yield from ([item] for item in run)


def _reads(item: Item) -> tuple[Value, ...]:
    match item:
        case Product() | Norm():
            own = item.operation.x if isinstance(item, Norm) else (item.norm or item).x
            other = residual(item)
            return (own,) if other is None else (own, other)
        case Turn():
            return item.q, item.k, item.attend.v
        case Attend():
            return (item.q,)
        case _:
            return inputs(item)


class _Fusing:
    """Finds what of a Program can be launched together."""

    def __init__(self, operations: Sequence[Operation], layout_of: Callable[[str], str]) -> None:
        self._operations = operations
        self._layout_of = layout_of
        self._writers = {operation.out: operation for operation in operations}
        self._readers: dict[Value, list[Operation]] = {}
        for operation in operations:
            for value in inputs(operation):
                self._readers.setdefault(value, []).append(operation)
        self._projections: dict[tuple[Value, str], tuple[Linear, ...]] = {}
        for operation in operations:
            if isinstance(operation, Linear):
                key = operation.x, layout_of(operation.weight)
                self._projections[key] = (*self._projections.get(key, ()), operation)
        self._turns = {each: self._turn(each) for each in operations if isinstance(each, Attend)}
        self._done = {value for turn in self._turns.values() for value in _absorbed(turn)}
        """Values that an item writes which stands elsewhere, or never."""

    def items(self) -> Iterator[Item]:
        """In the order in which they are launched."""
        for operation in self._operations:
            if operation.out not in self._done:
                yield from self._of(operation)

    def _of(self, operation: Operation) -> Iterator[Item]:
        match operation:
            case Linear():
                yield self._product(operation)
            case Logits():
                yield Product((operation,), self._layout_of(operation.weight))
            case RmsNorm():
                add = self._sum(operation.out) if operation.groups == 1 else None
                self._done.update({add.out} if add else ())
                yield Norm(operation, add)
            case Attend():
                yield self._turns[operation]
                yield operation
            case Rope() | Gate() | Add() | Part() | Convolve() | DeltaRule() | Select():
                yield operation
            case Embed():
                raise ProgramError("a Program embeds its tokens once, at its beginning")

    def _product(self, operation: Linear) -> Product:
        """All projections of its input, with the sum or the gate that they are for."""
        layout = self._layout_of(operation.weight)
        parts = self._projections[operation.x, layout]
        self._done.update(part.out for part in parts)
        add = self._sum(operation.out) if len(parts) == 1 else None
        gate = self._gate(parts) if len(parts) == 2 else None
        if gate is not None and parts[0].out != gate.gate:
            parts = parts[1], parts[0]
        self._done.update(each.out for each in (add, gate) if each)
        return Product(parts, layout, add, gate)

    def _sum(self, value: Value) -> Add | None:
        """The sum that alone reads a value, whose other term is there before that value."""
        match self._readers.get(value):
            case [Add() as add]:
                other = add.b if add.a == value else add.a
                return add if other.index < value.index else None
            case _:
                return None

    def _gate(self, parts: Sequence[Linear]) -> Gate | None:
        """The gate that alone reads two projections."""
        first, second = (self._readers.get(part.out) for part in parts)
        match first:
            case [Gate() as gate] if first == second:
                return gate
            case _:
                return None

    def _turn(self, attend: Attend) -> Turn:
        kv_heads = attend.k.width // (attend.q.width // attend.heads)
        q, k = self._rope(attend.q, attend.heads), self._rope(attend.k, kv_heads)
        if q is None or k is None or _angles(q) != _angles(k):
            return Turn(attend, attend.q, attend.k)
        norms = self._norm(q.x, attend.heads), self._norm(k.x, kv_heads)
        if None not in norms and len({norm.eps for norm in norms if norm}) > 1:
            norms = None, None
        q_norm, k_norm = norms
        return Turn(
            attend,
            q_norm.x if q_norm else q.x,
            k_norm.x if k_norm else k.x,
            (q, k),
            norms,
        )

    def _rope(self, value: Value, heads: int) -> Rope | None:
        match self._writers.get(value):
            case Rope() as rope if rope.heads == heads and len(self._readers[value]) == 1:
                return rope
            case _:
                return None

    def _norm(self, value: Value, heads: int) -> RmsNorm | None:
        match self._writers.get(value):
            case RmsNorm() as norm if norm.groups == heads and len(self._readers[value]) == 1:
                return norm
            case _:
                return None


def _with_norms(items: Sequence[Item]) -> Iterator[Item]:
    """The items, but norms drawn into the product that follows and alone reads their result."""
    readers = Counter(value for item in items for value in _reads(item))
    following = [*items[1:], None]
    drawn: RmsNorm | None = None
    for item, after in zip(items, following, strict=True):
        match item, after:
            case Norm(operation, add=None), Product() if (
                operation.groups == 1 and after.x == operation.out and readers[after.x] == 1
            ):
                drawn = operation
            case Product(), _:
                yield evolve(item, norm=drawn)
                drawn = None
            case _:
                yield item


def _angles(rope: Rope) -> tuple[tuple[float, ...], bool]:
    return rope.frequencies, rope.interleaved


def _absorbed(turn: Turn) -> Iterator[Value]:
    """The results of operations that a turn does."""
    for operation in (*(turn.ropes or ()), *turn.norms):
        if operation is not None:
            yield operation.out


def _places(begin: Embed, items: Sequence[Item]) -> tuple[Mapping[Value, Place], int]:
    last_read = {begin.out: -1}
    for index, item in enumerate(items):
        last_read.update(dict.fromkeys(results(item), index))
        last_read.update(dict.fromkeys(_reads(item), index))
        if isinstance(item, Select):
            # What follows is done for some of its tokens after others.
            last_read[item.x] = len(items)
    arena = _Arena()
    places: dict[Value, Place] = {}
    left: dict[int, set[Value]] = {}
    """The values of each matrix that are still read, by where it begins."""
    sizes: dict[int, int] = {}

    def put(values: Sequence[Value], widths: Sequence[int]) -> None:
        size = padded(sum(widths), _ALIGNED)
        at = arena.take(size)
        left[at], sizes[at] = set(values), size
        column = 0
        for value, width in zip(values, widths, strict=True):
            # Each in whole tiles, and all with the stride of the matrix.
            places[value] = Place(at, column, size)
            column += width

    put([begin.out], [padded(begin.out.width, TILE_ROWS)])
    for index, item in enumerate(items):
        if written := results(item):
            put(written, [padded(value.width, TILE_ROWS) for value in written])
        for at, values in list(left.items()):
            values.difference_update([value for value in values if last_read[value] <= index])
            if not values:
                arena.give_back(at, sizes[at])
                del left[at]
    return places, arena.size


class _Arena:
    """Ranges of columns, given out and taken back; the first that fits is given."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        for index, (at, room) in enumerate(self._free):
            if room >= size:
                del self._free[index]
                if room > size:
                    insort(self._free, (at + size, room - size))
                return at
        at = self.size
        self.size += size
        return at

    def give_back(self, at: int, size: int) -> None:
        insort(self._free, (at, size))
        merged: list[tuple[int, int]] = []
        for begin, room in self._free:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = merged[-1][0], merged[-1][1] + room
            else:
                merged.append((begin, room))
        self._free = merged
