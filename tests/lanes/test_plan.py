"""Plans: what is drawn together, what must not be, and whether values are safe where they lie.

A plan is checked by rules of its own, on programs drawn at random, and what runs by it is held
against numpy, which does one operation after another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.builder import ProgramBuilder
from caldrix.models.lane import LaneOptions
from caldrix.models.program import (
    Activation,
    Add,
    Attend,
    Convolve,
    DeltaRule,
    Gate,
    KvCache,
    Linear,
    Logits,
    Part,
    Program,
    RmsNorm,
    Rope,
    Select,
    Value,
)
from caldrix.weights.tensor import Tensor
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.formats import Format
from caldrix_cpu.numpy_executor import numpy_executor
from caldrix_cpu.places import Place
from caldrix_cpu.plan import (
    COMPILED,
    ByNumpy,
    Columns,
    Delta,
    Item,
    Pack,
    Plan,
    Projection,
    make_plan,
    reads,
    writes,
)
from tests.references import tiny
from tests.support.compiled import BEST, Array, compiled, feed, float_tensor
from tests.support.random_models import random_model

VOCAB, CONTEXT = 48, 64
WIDTHS = (16, 24, 48)
TOKENS = tuple(11 * position % VOCAB for position in range(30))


def in_float32(name: str) -> Format:
    return Format("F32")


def mixed(name: str) -> Format:
    """Any of three formats, by a weight's name."""
    formats = (Format("F32"), Format("Q8_0"), Format("BF16"))
    return formats[zlib.crc32(name.encode()) % 3]


def builder() -> ProgramBuilder:
    return ProgramBuilder("test", vocab_size=VOCAB, max_context=CONTEXT)


def ended(b: ProgramBuilder, x: Value) -> Program:
    return b.logits(b.select(x), f"head.{x.width}")


def projections(plan: Plan) -> list[Projection]:
    return [item for item in plan.items if isinstance(item, Projection)]


def kinds(plan: Plan) -> list[type[Item]]:
    return [type(item) for item in plan.items]


# What is drawn together


def test_a_layer_is_four_products() -> None:
    b = builder()
    x = b.embed("embedding", 48)
    h = b.rms_norm(x, "norm.1", eps=1e-5)
    q, k, v = (b.linear(h, part, 32, bias=f"{part}.bias") for part in "qkv")
    attended = b.attend(
        b.rope(q, heads=2, frequencies=(1.0,)), k, v, KvCache(2, 16), heads=2, scale=1.0
    )
    x = b.add(x, b.linear(attended, "o", 48))
    h = b.rms_norm(x, "norm.2", eps=1e-5)
    gate = b.gate(b.linear(h, "gate", 80), b.linear(h, "up", 80), Activation.SILU)
    x = b.add(b.linear(gate, "down", 48), x)
    plan = make_plan(ended(b, x), in_float32)
    qkv, o, gated, down, head = projections(plan)
    assert qkv.weights == ("q", "k", "v")
    assert qkv.biases == ("q.bias", "k.bias", "v.bias")
    assert (gated.weights, gated.gate, gated.outs) == (("gate", "up"), Activation.SILU, (gate,))
    assert o.residual is not None
    assert (o.weights, down.weights, down.residual) == (("o",), ("down",), o.outs[0])
    assert head.to_logits
    # Both norms are in the packing of what they normalise.
    norms = [item.norm for item in plan.items if isinstance(item, Pack)]
    names = [None if norm is None else norm.weight for norm in norms]
    assert names == ["norm.1", None, "norm.2", None, None]
    assert set(kinds(plan)) == {Pack, Projection, Rope, Attend, Select}


def gated(
    *, bias: bool = False, read_twice: bool = False, swapped: bool = False, one: bool = False
) -> Program:
    b = builder()
    x = b.embed("embedding", 48)
    gate = b.linear(x, "gate", 48, bias="bias" if bias else None)
    up = gate if one else b.linear(x, "up", 48)
    y = b.gate(up, gate, Activation.SILU) if swapped else b.gate(gate, up, Activation.SILU)
    return ended(b, b.add(y, gate if read_twice else x))


@pytest.mark.parametrize(
    ("program", "format_of", "fused"),
    [
        (gated(), in_float32, True),
        (gated(swapped=True), in_float32, True),
        (gated(bias=True), in_float32, False),
        (gated(read_twice=True), in_float32, False),
        (gated(one=True), in_float32, False),
        (gated(), lambda name: Format("Q8_0" if name == "up" else "F32"), False),
    ],
    ids=["plain", "swapped", "bias", "read twice", "one projection", "two formats"],
)
def test_a_gate_is_fused_where_nothing_is_lost(
    program: Program, format_of: Callable[[str], Format], fused: bool
) -> None:
    plan = make_plan(program, format_of)
    assert (Gate not in kinds(plan)) == fused
    if fused:
        (pair,) = [item for item in projections(plan) if item.gate is not None]
        gate = next(each for each in program.operations if isinstance(each, Gate))
        by_out = {each.out: each for each in program.operations if isinstance(each, Linear)}
        assert pair.weights == (by_out[gate.gate].weight, by_out[gate.up].weight)


def test_an_addition_is_fused_only_with_what_is_there_before_it() -> None:
    b = builder()
    x = b.embed("embedding", 48)
    own = b.linear(x, "own", 48)
    doubled = b.add(own, own)
    early = b.linear(doubled, "early", 48)
    late = b.add(doubled, doubled)
    summed = b.add(early, late)
    plan = make_plan(ended(b, summed), in_float32)
    assert [item.residual for item in projections(plan)] == [None] * 3
    assert kinds(plan).count(Add) == 3


def test_a_projection_that_is_done_early_does_not_read_what_comes_late() -> None:
    """Projections of one input are done together, where the first of them stands."""
    b = builder()
    x = b.embed("embedding", 48)
    first = b.linear(x, "first", 48)
    late = b.add(first, first)
    program = ended(b, b.add(b.linear(x, "second", 48), late))
    plan = make_plan(program, lambda name: Format("Q8_0" if name == "second" else "F32"))
    assert_reads_what_was_written(plan, program)
    assert [item.residual for item in projections(plan)] == [None] * 3


def test_a_norm_that_others_read_is_done_by_itself() -> None:
    b = builder()
    normed = b.rms_norm(b.embed("embedding", 48), "norm", eps=1e-5)
    plan = make_plan(ended(b, b.add(normed, b.linear(normed, "w", 48))), in_float32)
    assert kinds(plan).count(RmsNorm) == 1
    by_heads = builder()
    x = by_heads.select(by_heads.embed("embedding", 48))
    x = by_heads.rms_norm(x, "norm", eps=1e-5, groups=3)
    assert kinds(make_plan(by_heads.logits(x, "head"), in_float32)).count(RmsNorm) == 1


def delta(b: ProgramBuilder, q: Value, k: Value, v: Value, gates: Value) -> Value:
    """The delta rule over heads of 8; each reads its decay and strength in ``gates``."""
    heads = q.width // 8
    decay, strength = b.part(gates, 0, heads), b.part(gates, gates.width - heads, heads)
    return b.delta_rule(
        (q, k, v), decay, strength, rate=f"rate.{heads}", rate_bias=f"rate.bias.{heads}",
        key_heads=heads, scale=0.4, eps=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("lacking", [frozenset(), frozenset({DeltaRule})], ids=["all", "no rule"])
def test_the_delta_rule_reads_columns_where_they_lie(lacking: frozenset[type]) -> None:
    b = builder()
    x = b.embed("embedding", 48)
    q, k, shared, apart = (
        b.part(x, 0, 16),
        b.part(x, 20, 16),
        b.part(x, 5, 16),
        b.part(x, 0, 8, groups=2),
    )
    y = b.add(delta(b, q, k, shared, x), b.add(shared, apart))
    plan = make_plan(ended(b, b.add(y, delta(b, q, k, apart, x))), in_float32, COMPILED - lacking)
    if lacking:
        assert kinds(plan).count(Part) == 8
        return
    # What others read too, and what is not one run of columns, is a value of its own.
    assert [item.out for item in plan.items if isinstance(item, Part)] == [shared, apart]
    first, second = [item for item in plan.items if isinstance(item, Delta)]
    assert (first.q, first.k, first.v) == (Columns(x, 0), Columns(x, 20), Columns(shared))
    assert (second.v, second.decay, second.strength) == (Columns(apart), Columns(x), Columns(x, 46))
    assert set(reads(first)) == {x, shared}


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_nothing_of_any_family_is_done_by_numpy(family: str) -> None:
    assert ByNumpy not in kinds(make_plan(random_model(family, "F32").program, in_float32))


# Random programs


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Operations in any order over any values that are there."""
    b = builder()
    values = [b.embed("embedding", draw(st.sampled_from(WIDTHS)), scale=1.5)]

    def value(width: int | None = None) -> Value:
        """A value, of that width where one is asked for."""
        fitting = [each for each in values if width in (None, each.width)]
        if fitting:
            return draw(st.sampled_from(fitting))
        assert width is not None
        return projected(draw(st.sampled_from(values)), width)

    def projected(x: Value, width: int) -> Value:
        number = draw(st.integers(0, 3))
        weight = f"linear.{width}.{x.width}.{number}"
        values.append(b.linear(x, weight, width, bias=f"{weight}.bias" if number == 0 else None))
        return values[-1]

    def normed(x: Value) -> Value:
        groups = draw(st.sampled_from([1, 1, 2]))
        return b.rms_norm(x, f"norm.{x.width // groups}", eps=1e-3, groups=groups)

    def positioned(x: Value) -> Value:
        return b.rope(
            x, heads=x.width // 8, frequencies=(1.0, 0.1), interleaved=draw(st.booleans())
        )

    def attended(x: Value) -> Value:
        heads = x.width // 8
        cache = KvCache(heads, 8, draw(st.sampled_from([None, 1, 5])))
        # Normalised, so that scores stay where float32 is good at exponentials.
        q, k = (b.rms_norm(each, f"norm.{x.width}", eps=1e-3) for each in (x, value(x.width)))
        return b.attend(q, k, value(x.width), cache, heads=heads, scale=0.3)

    def convolved(x: Value) -> Value:
        taps = draw(st.integers(1, 3))
        return b.convolve(
            x,
            f"taps.{x.width}.{taps}",
            (x.width, taps),
            activation=draw(st.sampled_from(Activation)),
        )

    def parted(x: Value) -> Value:
        groups, width = draw(st.sampled_from([(1, 16), (2, 8), (4, 4)]))
        start = draw(st.integers(0, x.width // groups - width))
        return b.part(x, start, groups * width // groups, groups=groups)

    def remembered(x: Value) -> Value:
        # Normalised, so that programs of many of them don't leave float32.
        v = b.rms_norm(value(x.width), f"norm.{x.width}", eps=1e-3)
        return delta(b, x, value(x.width), v, value())

    by_position = {
        "rope": positioned,
        "attend": attended,
        "convolve": convolved,
        "delta": remembered,
    }

    def choices(*, positions: bool) -> None:
        for _ in range(draw(st.integers(0, 8))):
            x = value()
            kind = draw(st.sampled_from(["linear", "norm", "gate", "add", "part", *by_position]))
            if kind == "linear":
                projected(x, draw(st.sampled_from(WIDTHS)))
            elif kind == "gate":
                values.append(b.gate(x, value(x.width), draw(st.sampled_from(Activation))))
            elif kind == "add":
                values.append(b.add(x, value(x.width)))
            elif kind == "part":
                values.append(parted(x))
            elif kind in by_position and positions:
                values.append(by_position[kind](x))
            else:
                values.append(normed(x))

    choices(positions=True)
    values = [b.select(value())]
    choices(positions=False)
    x = value()
    return b.logits(x, f"head.{x.width}")


def overlap(one: Place, other: Place) -> bool:
    return (
        one.local == other.local
        and one.column < other.column + -(-other.width // 16) * 16
        and other.column < one.column + -(-one.width // 16) * 16
    )


@given(program=programs(), format_of=st.sampled_from([in_float32, mixed]), removed=st.sets(
    st.sampled_from(sorted(COMPILED, key=str))
))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_values_are_safe_where_they_lie(
    program: Program, format_of: Callable[[str], Format], removed: set[type]
) -> None:
    plan = make_plan(program, format_of, COMPILED - removed)
    assert_reads_what_was_written(plan, program)
    assert_nothing_is_overwritten(plan)
    assert_threads_meet(plan)


def assert_reads_what_was_written(plan: Plan, program: Program) -> None:
    """Items come after those that they read, and the logits come out."""
    written = {plan.begin.out}
    packed: set[Pack] = set()
    for item in plan.items:
        assert set(reads(item)) <= written, item
        if isinstance(item, Pack):
            packed.add(item)
        if isinstance(item, Projection):
            assert item.pack in packed
        written.update(writes(item))
    last = program.operations[-1]
    outputs = [item for item in projections(plan) if item.to_logits]
    assert len(outputs) == 1 or last.out in written


def assert_nothing_is_overwritten(plan: Plan) -> None:
    """Between a value's writing and its last reading, nobody writes to its columns.

    Its own padding belongs to it. A product's values lie side by side, as it writes them.
    """
    written = {plan.begin.out: -1}
    for index, item in enumerate(plan.items):
        written.update(dict.fromkeys(writes(item), index))
        outs = [plan.places[value] for value in writes(item)]
        for left, right in pairwise(outs):
            assert right.column == left.column + left.width
    last = dict(written)
    for index, item in enumerate(plan.items):
        last.update(dict.fromkeys(reads(item), index))
    for value, begun in written.items():
        for other, at in written.items():
            if value != other and begun <= at <= last[value]:
                assert not overlap(plan.places[value], plan.places[other]), (value, other)


def assert_threads_meet(plan: Plan) -> None:
    """In a small step threads run on by themselves up to the next item that waits.

    So what one of them writes to the shared arena, others may read only after such an item; and
    none may write where a slower one may still be reading. All attentions share the memory that
    they sum up in.
    """
    since = attentions = 0
    shared: list[tuple[int, Value]] = []
    touched: list[tuple[Value, Place]] = []
    for index, (item, waits) in enumerate(zip(plan.items, plan.waits, strict=True)):
        if waits:
            since = index
            touched.clear()
            attentions = 0
        attentions += isinstance(item, Attend)
        assert attentions <= 1
        for value in reads(item):
            assert all(at < since or other != value for at, other in shared), item
            touched.append((value, plan.places[value]))
        divided = isinstance(item, Projection | Attend | Convolve | Delta)
        for value in writes(item):
            place = plan.places[value]
            assert place.local == (not divided)
            if divided:
                shared.append((index, value))
                assert not any(overlap(place, other) for read, other in touched if read != value)
                touched.append((value, place))


def weights_of(program: Program) -> dict[str, Tensor]:
    tensors = {}
    for name, shape in program.weights.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        values = rng.standard_normal(shape) / shape[-1] ** 0.5
        if len(shape) == 1:
            values = 1 + rng.standard_normal(shape) / 5
        tensors[name] = float_tensor(values, name=name)
    return tensors


def by_numpy(program: Program, weights: dict[str, Tensor]) -> Array:
    with numpy_executor(program, weights, LaneOptions(context=CONTEXT)) as executor:
        return feed(executor, TOKENS)


def assert_close(computed: Array, expected: Array) -> None:
    """Float32 in two orders of summation; an operation gone wrong is off by a tenth and more."""
    error = np.abs(computed - expected) / np.abs(expected).max(axis=1, keepdims=True)
    assert error.max() < 1e-4


@given(program=programs(), threads=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_any_program_gives_numpys_logits(program: Program, threads: int) -> None:
    weights = weights_of(program)
    expected = by_numpy(program, weights)
    with compiled(program, weights, context=CONTEXT, threads=threads) as executor:
        # Twice: the second time memory holds what the first left there.
        for cuts in ((), (1, 2, 7, 8, 20, 29), ()):
            assert_close(feed(executor, TOKENS, cuts), expected)


def every_operation() -> Program:
    b = builder()
    x = b.embed("embedding", 48)
    h = b.rms_norm(x, "norm", eps=1e-5)
    q, k, v = (b.linear(h, part, 48, bias=f"{part}.bias") for part in "qkv")
    q, k = (b.rope(each, heads=3, frequencies=(1.0, 0.1)) for each in (q, k))
    x = b.add(x, b.linear(b.attend(q, k, v, KvCache(3, 16), heads=3, scale=0.25), "o", 48))
    gate = b.gate(b.linear(x, "gate", 80), b.linear(x, "up", 80), Activation.GELU_TANH)
    x = b.add(x, b.linear(gate, "down", 48))
    u = b.convolve(b.linear(x, "u", 96), "taps", (96, 1, 3), activation=Activation.SILU)
    halves = b.part(u, 0, 24), b.part(u, 24, 24)
    x = b.add(x, b.linear(delta(b, *halves, b.part(u, 48, 24), x), "r", 48))
    return b.logits(b.rms_norm(b.select(x), "norm", eps=1e-5), "head")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "removed",
    [RmsNorm, Rope, Attend, Part, Convolve, DeltaRule, Gate, Add, Select, Linear, Logits, None],
)
def test_what_the_tape_lacks_is_done_by_numpy(removed: type | None, threads: int) -> None:
    program = every_operation()
    weights = weights_of(program)
    options = LaneOptions(context=CONTEXT, rows=2, threads=threads, kv_dtype="f32")
    lacking = frozenset() if removed is None else frozenset({removed})
    with tape_executor(program, weights, options, BEST, COMPILED - lacking) as executor:
        assert executor.by_numpy == tuple(each.__name__ for each in lacking)
        expected = by_numpy(program, weights)
        for row in (1, 0):
            assert_close(feed(executor, TOKENS, (1, 2, 7, 8, 20, 29), row), expected)
        if removed is not None:
            items = make_plan(program, in_float32, COMPILED - lacking).items
            assert any(isinstance(item, ByNumpy) for item in items)
