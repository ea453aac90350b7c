"""Packed tiles, read value by value as `caldrix_cpu.tiles.layouts` and `bf12` describe them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.blocks import FORMATS
from caldrix.weights.tensor import Tensor
from caldrix_cpu import aligned
from caldrix_cpu.tiles import bf12, floats, runs
from caldrix_cpu.tiles.layouts import LAYOUTS, PLANES, QuantLayout
from caldrix_cpu.tiles.pack import pack_into, packed_bytes
from caldrix_cpu.tiles.quantize import QUANTIZERS, quantized
from tests.support.random_blocks import random_blocks

Array = npt.NDArray[np.float32]
# Rows, first place and step of matrices that share a buffer of five tiles.
PLACED = ((21, 0, 2), (30, 1, 2), (16, 4, 1))


def line(size: int) -> int:
    return -(-size // 64) * 64


def bits_of(values: Array) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def float_tensor(values: npt.NDArray[np.floating], name: str = "t") -> Tensor:
    kind = {"float32": "F32", "float16": "F16"}[values.dtype.name]
    return Tensor(name, values.shape, FORMATS[kind], np.ascontiguousarray(values).view(np.uint8))


def bfloat16_tensor(bits: npt.NDArray[np.uint16]) -> Tensor:
    return Tensor("t", bits.shape, FORMATS["BF16"], np.ascontiguousarray(bits).view(np.uint8))


def read_quants(tile: bytes, layout: QuantLayout, columns: int) -> Array:
    """The values of a quantized tile, ``[16, columns]``."""
    halves = 2 if layout.minima else 1
    supers_bytes = line(columns // 256 * 32 * halves) if layout.two_level else 0
    each_scale = 16 if layout.two_level else 32
    scales_bytes = line(columns // layout.group * each_scale * halves)
    factor, quant, minimum = np.zeros((3, 16, columns), np.float32)
    for row in range(16):
        for column in range(columns):
            group = column // layout.group
            if layout.two_level:
                at = column // 256 * 32 * halves + 2 * row
                (d,) = struct.unpack_from("<e", tile, at)
                small = supers_bytes + group * 16 * halves + row
                factor[row, column] = d * struct.unpack_from("<b", tile, small)[0]
                if layout.minima:
                    (dmin,) = struct.unpack_from("<e", tile, at + 32)
                    minimum[row, column] = -(dmin * tile[small + 16])
            else:
                at = group * 32 * halves + 2 * row
                (factor[row, column],) = struct.unpack_from("<e", tile, at)
                if layout.minima:
                    (minimum[row, column],) = struct.unpack_from("<e", tile, at + 32)
            plane = supers_bytes + scales_bytes + column // 32 * 64 * layout.bits
            run, i = divmod(column % 32, 4)
            q = below = 0
            for width in PLANES[layout.bits]:
                fold, vector = divmod(run, width)
                byte = tile[plane + 64 * vector + 4 * row + i]
                q |= (byte >> width * fold) % (1 << width) << below
                below += width
                plane += 64 * width
            quant[row, column] = q - layout.offset
    product = quant * factor
    return product + minimum if layout.minima else product


def read_floats(tile: bytes, name: str, columns: int) -> Array:
    """The values of a float tile, ``[16, columns]``."""
    values = np.empty((16, columns), np.float32)
    for row in range(16):
        for column in range(columns):
            if name == "BF16":
                at = 64 * (column // 2) + 4 * row + 2 * (column % 2)
                (values[row, column],) = struct.unpack("<f", b"\0\0" + tile[at : at + 2])
            else:
                kind, size = ("<f", 4) if name == "F32" else ("<e", 2)
                (values[row, column],) = struct.unpack_from(kind, tile, size * (16 * column + row))
    return values


def read_matrix(
    buffer: npt.NDArray[np.uint8], name: str, shape: tuple[int, int], first: int, step: int
) -> Array:
    """A matrix of a buffer with the rows that fill its last tile."""
    layout, (rows, columns) = LAYOUTS[name], shape
    size = layout.tile_bytes(columns)
    tiles = []
    for place in range(first, first + step * -(-rows // 16), step):
        tile = buffer[place * size : (place + 1) * size].tobytes()
        if isinstance(layout, QuantLayout):
            tiles.append(read_quants(tile, layout, columns))
        else:
            tiles.append(read_floats(tile, name, columns))
    return np.concatenate(tiles)


def packed(tensors: Sequence[Tensor], name: str, fill: int) -> npt.NDArray[np.uint8]:
    """Tensors of `PLACED` packed into a buffer that held other bytes."""
    layout, columns = LAYOUTS[name], tensors[0].shape[-1]
    buffer = aligned.empty((packed_bytes(layout, 80, columns) // 4,)).view(np.uint8)
    buffer[...] = fill
    for tensor, (_, first, step) in zip(tensors, PLACED, strict=True):
        pack_into(buffer, tensor, layout, first, step)
    return buffer


def assert_packs(
    tensors: Sequence[Tensor], name: str, expected: Sequence[Array], patch: pytest.MonkeyPatch
) -> None:
    buffer = packed(tensors, name, fill=0)
    for tensor, values, (rows, first, step) in zip(tensors, expected, PLACED, strict=True):
        read = read_matrix(buffer, name, (rows, tensor.shape[-1]), first, step)
        np.testing.assert_array_equal(bits_of(read[:rows]), bits_of(values))
        assert not read[rows:].any()
    patch.setattr(runs, "_RUN_VALUES", 1)
    np.testing.assert_array_equal(packed(tensors, name, fill=0xAA), buffer)


@pytest.mark.parametrize("name", [n for n in LAYOUTS if isinstance(LAYOUTS[n], QuantLayout)])
@pytest.mark.parametrize("row_blocks", [1, 3])
def test_quantized_tiles_hold_the_files_values(
    name: str, row_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = FORMATS[name]
    tensors = [
        Tensor("t", (rows, row_blocks * kind.block_values), kind, data)
        for rows, *_ in PLACED
        for data in [random_blocks(kind, rows, row_blocks, seed=rows)]
    ]
    assert_packs(tensors, name, [tensor.to_float32() for tensor in tensors], monkeypatch)


@pytest.mark.parametrize("columns", [1, 6, 64])
@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "Q4_1"])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_tiles_hold_values_rounded_to_nearest(
    name: str, source: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(columns)
    columns = columns if source != "Q4_1" else 64
    values = [rng.standard_normal((rows, columns)).astype(np.float32) for rows, *_ in PLACED]
    # Halfway between two bfloat16, below an even and an odd one; and between two float16.
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000], np.uint32)
    values[0].reshape(-1)[:4] = halfway.view(np.float32)
    tensors = [
        Tensor("t", each.shape, FORMATS[source], ggml_bytes(each, source)) for each in values
    ]
    decoded = [tensor.to_float32() for tensor in tensors]
    expected = [
        gguf.quants.dequantize(ggml_bytes(each, name), gguf.GGMLQuantizationType[name])
        for each in decoded
    ]
    assert_packs(tensors, name, expected, monkeypatch)


def ggml_bytes(values: Array, name: str) -> npt.NDArray[np.uint8]:
    kind = gguf.GGMLQuantizationType[name]
    return np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8)


def read_bf12(buffer: npt.NDArray[np.uint8], columns: int, places: range) -> npt.NDArray[np.uint16]:
    """The bits of some tiles of a compressed buffer, ``[16 * len(places), columns]``."""
    raw, blocks = buffer.tobytes(), columns // 32
    values = np.empty((16 * len(places), columns), np.uint16)
    for tile, place in enumerate(places):
        (start,) = struct.unpack_from("<q", raw, 8 * place)
        at = start + line(2 * blocks)
        for block in range(blocks):
            (header,) = struct.unpack_from("<H", raw, start + 2 * block)
            for row in range(16):
                for column in range(32):
                    pair, within = column // 2, 2 * row + column % 2
                    if header == 0xFFFF:
                        (bits,) = struct.unpack_from("<H", raw, at + 64 * pair + 2 * within)
                    else:
                        rest = raw[at + 32 * pair + within]
                        nibbles = raw[at + 512 + 32 * (pair // 2) + within]
                        nibble = nibbles >> 4 if pair % 2 else nibbles & 15
                        exponent = header + (nibble << 7) if nibble else 0
                        bits = (rest >> 7) << 15 | exponent | rest & 0x7F
                    values[16 * tile + row, 32 * block + column] = bits
            at += 1024 if header == 0xFFFF else 768
    return values


# What a block's values are, as a range of exponents.
EXPONENTS = {
    "a full span": (111, 126),
    "one too many": (110, 126),
    "anything": (0, 256),
    "zeros and subnormals": (0, 1),
    "the lowest span": (0, 16),
    "infinities and NaN": (255, 256),
    "the highest span": (241, 256),
}


@given(data=st.data(), seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_bf12_gives_every_bit_back(data: st.DataObject, seed: int, blocks: int) -> None:
    rng = np.random.default_rng(seed)
    matrices, fitting = [], 0
    for rows, *_ in PLACED:
        tiles = -(-rows // 16)
        bits = np.zeros((16 * tiles, 32 * blocks), np.uint16)
        for tile in range(tiles):
            for block in range(blocks):
                low, high = EXPONENTS[data.draw(st.sampled_from(sorted(EXPONENTS)))]
                exponents = rng.integers(low, high, (16, 32))
                # Both ends, so that the span is what it is meant to be, and zeros, which any has.
                exponents[0, :2] = low, high - 1
                exponents[1, ::3] = 0
                bits[16 * tile : 16 * tile + 16, 32 * block : 32 * block + 32] = (
                    rng.integers(0, 2, (16, 32)) << 15
                    | exponents << 7
                    | rng.integers(0, 128, (16, 32))
                )
                fitting += high - max(low, 1) <= 15
        bits[rows:] = 0
        matrices.append(bits)
    parts = [
        bf12.Part(bfloat16_tensor(bits[:rows]), first, step)
        for bits, (rows, first, step) in zip(matrices, PLACED, strict=True)
    ]
    buffer = bf12.compress(parts)
    assert buffer.ctypes.data % 64 == 0
    assert buffer.size == 64 + 5 * (64 + 1024 * blocks) - 256 * fitting
    assert bf12.measure(parts).share_that_fits == pytest.approx(fitting / (5 * blocks))
    for bits, (_, first, step) in zip(matrices, PLACED, strict=True):
        places = range(first, first + step * (len(bits) // 16), step)
        np.testing.assert_array_equal(read_bf12(buffer, 32 * blocks, places), bits)


def test_bf12_of_many_tiles_in_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).standard_normal((16 * 9, 32 * 33)).astype(np.float32)
    whole = bf12.compress([bf12.Part(float_tensor(values))])
    most = packed_bytes(LAYOUTS["BF12"], *values.shape)
    # A table of nine offsets takes two lines, 33 headers two more in each tile.
    assert most == 128 + 9 * (128 + 33 * 1024)
    assert 0.76 < whole.size / most < 0.80
    monkeypatch.setattr(runs, "_RUN_VALUES", 2 * 16 * values.shape[1])
    np.testing.assert_array_equal(bf12.compress([bf12.Part(float_tensor(values))]), whole)
    rounded = floats.bfloat16_bits(values)
    np.testing.assert_array_equal(read_bf12(whole, values.shape[1], range(9)), rounded)


def test_bf12_refuses_what_it_cannot_place() -> None:
    part = bf12.Part(bfloat16_tensor(np.zeros((32, 32), np.uint16)))
    assert [columns for columns in (0, 16, 32, 48, 96) if bf12.takes(columns)] == [32, 96]
    with pytest.raises(ValueError, match="take them twice"):
        bf12.compress([part, part])
    with pytest.raises(ValueError, match="places open"):
        bf12.compress([bf12.Part(part.tensor, 0, 2)])
    with pytest.raises(ValueError, match="multiples of 32"):
        bf12.compress([bf12.Part(bfloat16_tensor(np.zeros((16, 48), np.uint16)))])
    with pytest.raises(ValueError, match=r"bf12\.compress"):
        pack_into(np.zeros(1024, np.uint8), part.tensor, LAYOUTS["BF12"])


@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizers_give_ggmls_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    halves = (rng.integers(-254, 255, (37, 96)) / 2).astype(np.float32)
    halves[:, ::32] = 127
    values = np.concatenate(
        [
            rng.standard_normal((100, 96)),
            halves,
            np.nextafter(halves, np.float32(-200)),
            np.nextafter(halves, np.float32(200)),
            np.exp2(rng.integers(-40, 10, (50, 96))) * rng.choice([-1, 1], (50, 96)),
            np.zeros((1, 96)),
            np.full((1, 96), -3.0),
        ]
    ).astype(np.float32)
    monkeypatch.setattr(runs, "_RUN_VALUES", 5000)
    tensor = quantized(float_tensor(values), name)
    assert (tensor.format, tensor.shape) == (FORMATS[name], values.shape)
    np.testing.assert_array_equal(tensor.data, ggml_bytes(values, name))


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_quantizers_refuse_what_they_cannot_hold(name: str, value: float) -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, 40] = value
    with pytest.raises(LaneUnavailable, match=rf"tensor wide holds values that {name} cannot"):
        quantized(float_tensor(values, "wide"), name)
    with pytest.raises(ValueError, match="40 columns"):
        quantized(float_tensor(values[:, :40]), name)


def test_quantizers_take_blocks_that_are_next_to_nothing() -> None:
    values = np.full((1, 32), 1e-42, np.float32)
    values[0, 0] = -1e-42
    for name in QUANTIZERS:
        assert not quantized(float_tensor(values), name).to_float32().any()


NAN_PAYLOAD = np.array([0x7FA00001], np.uint32).view(np.float32)[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, -0.0, 1.0, -3.0, np.inf, np.nan, 2.0**127], "BF16"),
        ([2.0**-133, -(2.0**-130)], "BF16"),
        ([1 + 2.0**-10, 65504.0, -np.inf], "F16"),
        ([2.0**-24, 3 * 2.0**-24, 1 + 2.0**-10], "F16"),
        ([1 + 2.0**-10, 2.0**-25], "F32"),
        ([1 + 2.0**-10, 2.0**16], "F32"),
        ([1 + 2.0**-11], "F32"),
        ([2.0**-149], "F32"),
        ([NAN_PAYLOAD], "F32"),
    ],
)
def test_the_narrowest_format_that_changes_no_bit(values: list[float], expected: str) -> None:
    matrix = np.zeros((40, 16), np.float32)
    matrix[-1, : len(values)] = values
    tensor = float_tensor(matrix)
    name = floats.narrowest_exact(tensor)
    assert name == expected
    stored = floats.float_bits(tensor, name, slice(None)).view(np.uint8)
    back = Tensor("t", matrix.shape, FORMATS[name], stored).to_float32()
    np.testing.assert_array_equal(bits_of(back), bits_of(matrix))


@pytest.mark.parametrize(("name", "value"), [("F16", 7e4), ("BF16", 3.4e38)])
def test_a_value_past_the_format_is_refused(name: str, value: float) -> None:
    values = np.zeros((3, 32), np.float32)
    values[0, 0], values[1, 1], values[2, 2] = np.inf, value, np.nan
    buffer = np.zeros(packed_bytes(LAYOUTS[name], 3, 32), np.uint8)
    with pytest.raises(LaneUnavailable) as refused:
        pack_into(buffer, float_tensor(values, "wide"), LAYOUTS[name])
    assert f"tensor wide holds {value:.4g}, which is past the largest {name}" in str(refused.value)
    values[1, 1] = 0
    pack_into(buffer, float_tensor(values), LAYOUTS[name])
    np.testing.assert_array_equal(read_matrix(buffer, name, (3, 32), 0, 1)[:3], values)


def test_what_does_not_go_together_is_refused() -> None:
    layout = LAYOUTS["Q8_0"]
    tensor = quantized(float_tensor(np.ones((40, 32), np.float32)), "Q8_0")
    size = packed_bytes(layout, 40, 32)
    assert size == 3 * layout.tile_bytes(32)
    with pytest.raises(ValueError, match="does not fit"):
        pack_into(np.zeros(size, np.uint8), tensor, LAYOUTS["Q4_0"])
    for first, step in ((1, 1), (0, 2), (-3, 1), (0, 0)):
        with pytest.raises(ValueError, match="are not within 3"):
            pack_into(np.zeros(size, np.uint8), tensor, layout, first, step)
    with pytest.raises(ValueError, match="not whole tiles"):
        pack_into(np.zeros(size + 64, np.uint8), tensor, layout)
    with pytest.raises(ValueError, match="no matrix"):
        pack_into(np.zeros(size, np.uint8), float_tensor(np.ones(32, np.float32)), layout)
