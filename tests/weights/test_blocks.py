"""Block formats against the `gguf` package's own dequantizer, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.weights import blocks
from caldrix.weights.blocks import FORMATS, BlockFormat
from caldrix.weights.errors import CorruptFile
from caldrix.weights.tensor import Tensor
from tests.support.random_blocks import HALVES, random_blocks

QUANTIZED = [FORMATS[name] for name in HALVES]
WITH_QUANTIZER = [FORMATS[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16")]


def named(block_format: BlockFormat) -> str:
    return block_format.name


def ggml_type(block_format: BlockFormat) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[block_format.name]


def reference(data: np.ndarray, block_format: BlockFormat) -> np.ndarray:
    return gguf.quants.dequantize(data, ggml_type(block_format))


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("block_format", FORMATS.values(), ids=named)
def test_sizes_are_ggmls(block_format: BlockFormat) -> None:
    sizes = gguf.GGML_QUANT_SIZES[ggml_type(block_format)]
    assert (block_format.block_values, block_format.block_bytes) == sizes


@pytest.mark.parametrize("block_format", QUANTIZED, ids=named)
@pytest.mark.parametrize(("rows", "row_blocks"), [(1, 1), (3, 1), (37, 5)])
def test_random_blocks_decode_as_the_reference(
    block_format: BlockFormat, rows: int, row_blocks: int
) -> None:
    data = random_blocks(block_format, rows, row_blocks, seed=rows)
    decoded = blocks.decode(block_format, data)
    assert decoded.shape == (rows, row_blocks * block_format.block_values)
    assert_same_bits(decoded, reference(data, block_format))


@pytest.mark.parametrize("block_format", WITH_QUANTIZER, ids=named)
def test_quantized_values_decode_as_the_reference(block_format: BlockFormat) -> None:
    values = np.random.default_rng(7).standard_normal((11, 96)).astype(np.float32)
    data = gguf.quants.quantize(values, ggml_type(block_format)).view(np.uint8)
    decoded = blocks.decode(block_format, data)
    assert_same_bits(decoded, reference(data, block_format).reshape(11, 96))
    assert np.abs(decoded - values).max() < 0.4


@pytest.mark.parametrize("block_format", QUANTIZED, ids=named)
def test_chunks_leave_no_seam(block_format: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_blocks(block_format, 5, 3, seed=5)
    monkeypatch.setattr(blocks, "_CHUNK_VALUES", 2 * block_format.block_values)
    assert_same_bits(blocks.decode(block_format, data), reference(data, block_format))


@pytest.mark.parametrize("block_format", QUANTIZED, ids=named)
def test_unpacked_integers_and_scales_give_the_values(block_format: BlockFormat) -> None:
    data = random_blocks(block_format, 4, 2, seed=3)
    unpacked = blocks.unpack(block_format, data)
    assert unpacked.quants.dtype == np.int8
    assert unpacked.scales.dtype == np.float32
    values = unpacked.quants.astype(np.float32) * unpacked.scales[:, :, None]
    if unpacked.minima is not None:
        values += unpacked.minima[:, :, None]
    assert_same_bits(values.reshape(4, -1), reference(data, block_format))


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("Q4_0", -8, 7),
        ("Q4_1", 0, 15),
        ("Q5_0", -16, 15),
        ("Q5_1", 0, 31),
        ("Q8_0", -128, 127),
        ("Q2_K", 0, 3),
        ("Q3_K", -4, 3),
        ("Q4_K", 0, 15),
        ("Q5_K", 0, 31),
        ("Q6_K", -32, 31),
    ],
)
def test_quants_use_their_whole_range(name: str, lowest: int, highest: int) -> None:
    quants = blocks.unpack(FORMATS[name], random_blocks(FORMATS[name], 64, 4, seed=1)).quants
    assert (quants.min(), quants.max()) == (lowest, highest)


def test_plain_values() -> None:
    values = np.array([[0.0, -0.0, 1.5, -3.0e38, 1e-45, np.inf]], dtype=np.float32)
    assert_same_bits(blocks.decode(FORMATS["F32"], values.view(np.uint8)), values)
    halves = np.array([[0.5, -0.0, 65504.0, 6e-8, -np.inf]], dtype=np.float16)
    expected = np.array([[0.5, -0.0, 65504.0, 5.9604645e-08, -np.inf]], dtype=np.float32)
    assert_same_bits(blocks.decode(FORMATS["F16"], halves.view(np.uint8)), expected)
    brains = np.array([[0x3F80, 0xC040, 0x8000, 0x7F80]], dtype=np.uint16)
    expected = np.array([[1.0, -3.0, -0.0, np.inf]], dtype=np.float32)
    assert_same_bits(blocks.decode(FORMATS["BF16"], brains.view(np.uint8)), expected)


@given(
    block_format=st.sampled_from(QUANTIZED),
    rows=st.integers(1, 9),
    picks=st.lists(st.integers(0, 8), max_size=12),
    cut=st.slices(9),
)
@settings(max_examples=60, deadline=None)
def test_chosen_rows_are_rows_of_the_whole(
    block_format: BlockFormat, rows: int, picks: list[int], cut: slice
) -> None:
    data = random_blocks(block_format, rows, 2, seed=rows)
    tensor = Tensor("t", (rows, 2 * block_format.block_values), block_format, data)
    whole = tensor.to_float32()
    chosen = np.array([pick % rows for pick in picks], dtype=np.int64)
    assert_same_bits(tensor.rows_to_float32(chosen), whole[chosen])
    assert_same_bits(tensor.rows_to_float32(cut), np.ascontiguousarray(whole[cut]))


def test_decoded_values_are_in_shape_and_the_callers_own() -> None:
    data = np.arange(24, dtype="<f4").view(np.uint8).reshape(6, 16)
    data.flags.writeable = False
    tensor = Tensor("conv", (2, 3, 4), FORMATS["F32"], data)
    values = tensor.to_float32()
    values[0, 0, 0] = 5
    np.testing.assert_array_equal(tensor.to_float32(), np.arange(24).reshape(2, 3, 4))
    scalar = Tensor("scale", (), FORMATS["F32"], data[:1, :4])
    assert scalar.to_float32().shape == ()


def test_a_row_that_is_not_there() -> None:
    tensor = Tensor("t", (2, 1), FORMATS["F32"], np.zeros((2, 4), np.uint8))
    with pytest.raises(IndexError):
        tensor.rows_to_float32(np.array([2]))


def test_what_is_no_weight_is_refused_by_name() -> None:
    ids = Tensor("position_ids", (1, 2), BlockFormat("I64", 1, 8), np.zeros((1, 16), np.uint8))
    with pytest.raises(CorruptFile, match="type I64 of tensor position_ids is not supported"):
        ids.to_float32()
    plain = Tensor("norm", (1,), FORMATS["F32"], np.zeros((1, 4), np.uint8))
    with pytest.raises(CorruptFile, match="norm is F32, which is not quantized"):
        plain.unpack()


@pytest.mark.parametrize("block_format", QUANTIZED, ids=named)
def test_a_tensor_of_more_dimensions_is_a_matrix_of_longer_rows(block_format: BlockFormat) -> None:
    width = 2 * block_format.block_values
    tensor = Tensor("t", (2, 3, width), block_format, random_blocks(block_format, 6, 2, seed=0))
    matrix = tensor.as_matrix()
    assert matrix.shape == (2, 3 * width)
    assert_same_bits(matrix.to_float32(), tensor.to_float32().reshape(2, -1))
    assert matrix.as_matrix() is matrix
