"""From a Program to a plan: which kernels run, in which order, over which columns of memory.

Planning needs no weights and no memory. Operations are drawn together where one kernel does the
work of several:

- projections of one input, in one weight format, are one product;
- a gate and its two projections are one product whose tiles alternate;
- an addition right after a projection is done as the projection is written;
- a norm that only projections read happens as their input is packed;
- columns that only the delta rule reads are read where they lie.

An operation that the tape lacks runs in numpy between two parts of the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from caldrix.models.encoder_program import (
    Activate,
    AddTable,
    AttendAll,
    EncoderOperation,
    Input,
    LayerNorm,
    PixelShuffle,
)
from caldrix.models.program import (
    Activation,
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
    RmsNorm,
    Rope,
    Select,
    Value,
    inputs,
)
from caldrix_cpu.formats import Format
from caldrix_cpu.places import Access, Place, place

COMPILED: frozenset[type] = frozenset(
    {
        Embed,
        RmsNorm,
        Linear,
        Rope,
        Attend,
        Part,
        Convolve,
        DeltaRule,
        Gate,
        Add,
        Select,
        Logits,
    }
)
"""The operations that the tape has."""


@frozen
class Pack:
    """Activations for projections, normalised first where there is a norm."""

    x: Value
    kind: int
    norm: RmsNorm | None


@frozen
class Projection:
    """One product: the weights' rows one after another, or alternating by tiles where gated."""

    x: Value
    pack: Pack
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    outs: tuple[Value, ...]
    """One for each weight, or the gate's alone."""
    format: Format
    gate: Activation | None = None
    residual: Value | None = None
    to_logits: bool = False


@frozen
class Columns:
    """A value from a column on, as wide as its reader knows."""

    x: Value
    start: int = 0


@frozen
class Delta:
    """The delta rule, and where each of its inputs lies."""

    operation: DeltaRule
    q: Columns
    k: Columns
    v: Columns
    decay: Columns
    strength: Columns


@frozen
class ByNumpy:
    """An operation that the tape lacks."""

    operation: Operation


Item: TypeAlias = (
    Pack
    | Projection
    | RmsNorm
    | Rope
    | Attend
    | Part
    | Convolve
    | Delta
    | Gate
    | Add
    | Select
    | LayerNorm
    | Activate
    | AddTable
    | AttendAll
    | ByNumpy
)
Begin: TypeAlias = Embed | Input | PixelShuffle
"""What writes a plan's first value, before any item runs."""


@frozen(eq=False)
class Plan:
    """What runs, in order, and where values lie."""

    begin: Begin
    items: Sequence[Item]
    places: Mapping[Value, Place]
    waits: Sequence[bool]
    """For each item, whether a small step's threads must meet before it."""
    shared_width: int
    local_width: int


def make_plan(
    program: Program,
    format_of: Callable[[str], Format],
    compiled: Collection[type] = COMPILED,
) -> Plan:
    """The plan of a program; ``format_of`` says how each matrix is kept."""
    return _planned(program.operations, format_of, compiled)


def make_stage_plan(
    operations: Sequence[EncoderOperation], format_of: Callable[[str], Format]
) -> Plan:
    """The plan of a part of an encoder whose values have equally many rows.

    The first operation is the `Begin`; the last one's value is there when all have run.
    """
    return _planned(operations, format_of, COMPILED)


def _planned(
    operations: Sequence[Operation | EncoderOperation],
    format_of: Callable[[str], Format],
    compiled: Collection[type],
) -> Plan:
    begin = operations[0]
    assert isinstance(begin, Begin), f"a program begins with its embedding, not with {begin}"
    items = _Planner(operations, format_of, compiled).items()
    placed = place(begin.out, [_access(item) for item in items])
    return Plan(begin, items, placed.places, placed.waits, placed.shared_width, placed.local_width)


class _Planner:
    def __init__(
        self,
        operations: Sequence[Operation | EncoderOperation],
        format_of: Callable[[str], Format],
        compiled: Collection[type],
    ) -> None:
        self._operations = operations
        self._format_of = format_of
        self._compiled = compiled
        self._readers: dict[Value, list[Operation | EncoderOperation]] = {}
        for operation in operations[1:]:
            for value in inputs(operation):
                self._readers.setdefault(value, []).append(operation)
        self._done: set[int] = set()
        self._norms: dict[Value, RmsNorm] = {}
        self._parts: dict[Value, Part] = {}
        self._items: list[Item] = []

    def items(self) -> list[Item]:
        """What runs, in order, after what writes the first value."""
        for operation in self._operations[1:]:
            if operation.out.index not in self._done:
                self._add(operation)
        return self._items

    def _add(self, operation: Operation | EncoderOperation) -> None:
        match operation:
            case LayerNorm() | Activate() | AddTable() | AttendAll():
                self._items.append(operation)
                return
            case Input() | PixelShuffle():
                raise AssertionError(f"a plan begins with {operation}, and nothing comes before")
        if type(operation) not in self._compiled:
            self._items.append(ByNumpy(operation))
            return
        match operation:
            case Linear():
                self._add_projections(operation.x)
            case Logits():
                pack = self._pack(operation.x, self._format_of(operation.weight))
                self._items.append(self._logits(operation, pack))
            case RmsNorm() if self._only_projections_read(operation):
                self._norms[operation.out] = operation
            case Part() if self._only_delta_rules_read(operation):
                self._parts[operation.out] = operation
            case DeltaRule():
                self._items.append(self._delta(operation))
            case RmsNorm() | Rope() | Attend() | Part() | Convolve() | Gate() | Add() | Select():
                self._items.append(operation)
            case _:
                raise AssertionError(f"a second embedding: {operation}")

    def _only_projections_read(self, norm: RmsNorm) -> bool:
        readers = self._readers.get(norm.out, [])
        return (
            norm.groups == 1
            and bool(readers)
            and all(
                isinstance(reader, Linear | Logits) and type(reader) in self._compiled
                for reader in readers
            )
        )

    def _only_delta_rules_read(self, part: Part) -> bool:
        readers = self._readers.get(part.out, [])
        return (
            part.groups == 1
            and bool(readers)
            and all(
                isinstance(reader, DeltaRule) and DeltaRule in self._compiled for reader in readers
            )
        )

    def _delta(self, operation: DeltaRule) -> Delta:
        return Delta(
            operation,
            q=self._columns(operation.q),
            k=self._columns(operation.k),
            v=self._columns(operation.v),
            decay=self._columns(operation.decay),
            strength=self._columns(operation.strength),
        )

    def _columns(self, value: Value) -> Columns:
        part = self._parts.get(value)
        return Columns(value) if part is None else Columns(part.x, part.start)

    def _add_projections(self, x: Value) -> None:
        """All projections of ``x``: first those of a gate, then the others by format."""
        projections = [
            reader
            for reader in self._readers[x]
            if isinstance(reader, Linear) and Linear in self._compiled
        ]
        self._done.update(projection.out.index for projection in projections)
        gated = self._gates(projections)
        for gate, first, second in gated:
            self._done.add(gate.out.index)
            format_ = self._format_of(first.weight)
            self._items.append(
                Projection(
                    x=x,
                    pack=self._pack(x, format_),
                    weights=(first.weight, second.weight),
                    biases=(None, None),
                    outs=(gate.out,),
                    format=format_,
                    gate=gate.activation,
                )
            )
        of_gates = {id(linear) for _, *pair in gated for linear in pair}
        by_format: dict[Format, list[Linear]] = {}
        for projection in projections:
            if id(projection) not in of_gates:
                by_format.setdefault(self._format_of(projection.weight), []).append(projection)
        for format_, group in by_format.items():
            self._add_group(x, format_, group, before=projections[0].out)

    def _add_group(self, x: Value, format_: Format, group: Sequence[Linear], before: Value) -> None:
        residual, outs = None, tuple(projection.out for projection in group)
        if len(group) == 1:
            addition = self._addition(group[0], before)
            if addition is not None:
                residual = addition.a if addition.b == outs[0] else addition.b
                outs = (addition.out,)
                self._done.add(addition.out.index)
        self._items.append(
            Projection(
                x=x,
                pack=self._pack(x, format_),
                weights=tuple(projection.weight for projection in group),
                biases=tuple(projection.bias for projection in group),
                outs=outs,
                format=format_,
                residual=residual,
            )
        )

    def _gates(self, projections: Sequence[Linear]) -> list[tuple[Gate, Linear, Linear]]:
        """The gates that read nothing but two of these, each read by nobody else."""
        by_out = {projection.out: projection for projection in projections}
        found = []
        for projection in projections:
            for reader in self._readers.get(projection.out, []):
                if not isinstance(reader, Gate) or reader.gate != projection.out:
                    continue
                other = by_out.get(reader.up)
                if (
                    other is not None
                    and other is not projection
                    and Gate in self._compiled
                    and len(self._readers[reader.gate]) == len(self._readers[reader.up]) == 1
                    and projection.bias is None
                    and other.bias is None
                    and self._format_of(projection.weight) == self._format_of(other.weight)
                ):
                    found.append((reader, projection, other))
        return found

    def _addition(self, projection: Linear, before: Value) -> Add | None:
        """The addition that alone reads a projection, if its other operand comes ``before``."""
        readers = self._readers.get(projection.out, [])
        if len(readers) != 1 or not isinstance(readers[0], Add) or Add not in self._compiled:
            return None
        addition = readers[0]
        other = addition.a if addition.b == projection.out else addition.b
        if other == projection.out or other.index > before.index:
            return None
        return addition

    def _pack(self, x: Value, format_: Format) -> Pack:
        """The packed form of ``x`` that a format reads, added to the plan unless it is there."""
        norm = self._norms.get(x)
        pack = Pack(norm.x if norm is not None else x, format_.kind, norm)
        if pack not in self._items:
            self._items.append(pack)
        return pack

    def _logits(self, operation: Logits, pack: Pack) -> Projection:
        return Projection(
            x=operation.x,
            pack=pack,
            weights=(operation.weight,),
            biases=(None,),
            outs=(operation.out,),
            format=self._format_of(operation.weight),
            to_logits=True,
        )


def reads(item: Item) -> tuple[Value, ...]:
    """The values that an item reads from an arena."""
    match item:
        case Pack():
            return (item.x,)
        case Projection():
            return () if item.residual is None else (item.residual,)
        case Delta():
            sources = (item.q, item.k, item.v, item.decay, item.strength)
            return tuple(dict.fromkeys(source.x for source in sources))
        case ByNumpy():
            return inputs(item.operation)
        case _:
            return inputs(item)


def writes(item: Item) -> tuple[Value, ...]:
    """The values that an item writes to an arena."""
    match item:
        case Pack():
            return ()
        case Projection():
            return () if item.to_logits else item.outs
        case Delta() | ByNumpy():
            return (item.operation.out,)
        case _:
            return (item.out,)


def _access(item: Item) -> Access:
    """What an item does to memory; numpy waits for every thread."""
    return Access(
        reads=reads(item),
        writes=writes(item),
        divided=isinstance(item, Projection | Attend | AttendAll | Convolve | Delta),
        sums_up=isinstance(item, Attend),
        waits=isinstance(item, ByNumpy),
    )
