"""What the roofline counts, by hand for a small model, and that README has what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from caldrix.bench.cases import Case, Decode, Prefill
from caldrix.errors import Refusal
from tests.benchmarks.opencl import choose, measure, report
from tests.benchmarks.roofline import Gpu, kinds_of, readme_tables, resident_bytes, together
from tests.benchmarks.shapes import CONFIGS, layouts_of, program_of
from tests.benchmarks.work import Decoding, Work, works_of
from tests.support.opencl import require_device

SMALL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 48,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
# Tiles of 16 rows in Q8_0: scales in whole lines of 64 bytes, and a byte for each value.
TILE_OF_32, TILE_OF_64 = 64 + 512, 64 + 1024
MATRICES = (
    # Tiles, rows and columns; values that are read and written for each token.
    (4 * TILE_OF_32, 64 * 32, 32 + 64),  # queries, keys and values
    (2 * TILE_OF_32, 32 * 32, 32 + 32 + 32),  # output, and what it is added to
    (8 * TILE_OF_32, 128 * 32, 32 + 64),  # gate and up
    (2 * TILE_OF_64, 32 * 64, 64 + 32 + 32),  # down, and what it is added to
    (3 * TILE_OF_32, 48 * 32, 32 + 48),  # logits
)


@pytest.mark.parametrize("sequences", [1, 8])
def test_a_small_model_by_hand(sequences: int) -> None:
    program = program_of(SMALL)
    _, works = works_of(program, layouts_of(program, "q8_0"), Decoding(sequences, depth=9))
    kinds = {kind.name: (kind.launches, kind.bytes, kind.flops) for kind in kinds_of(works)}
    weights = sum(tiles for tiles, _, _ in MATRICES)
    products = sum(2 * weights for _, weights, _ in MATRICES) + 2 * 32
    values = 4 * sum(values for _, _, values in MATRICES)
    assert kinds == {
        "matmul Q8_0": (5, weights + sequences * values, sequences * products),
        # Three norms of 32 columns.
        "rms_norm": (3, 3 * (4 * 32 + sequences * 4 * 64), sequences * 3 * 4 * 32),
        # 64 columns and 8 pairs' cosines and sines are read, 32 written, and 32 kept in 2 bytes;
        # 48 columns are turned.
        "turn": (1, sequences * (4 * (64 + 16 + 32) + 2 * 32), sequences * 3 * 48),
        # Ten positions of 16 columns of keys and of values; two heads.
        "attend": (1, sequences * (10 * 2 * 16 * 2 + 4 * 64), sequences * 4 * 10 * 32),
        "pick": (1, sequences * 4 * 64, 0),
    }


def test_windows_bound_what_is_looked_at() -> None:
    program = program_of(CONFIGS["gemma3-270m"])
    layouts = layouts_of(program, "bf16")
    flops = {}
    for depth in (100, 2000):
        _, works = works_of(program, layouts, Decoding(1, depth))
        flops[depth] = sum(work.flops for work in works if work.kind == "attend")
    # Every sixth of 18 layers looks at everything.
    assert flops[100] == 4 * 1024 * 18 * 101
    assert flops[2000] == 4 * 1024 * (15 * 512 + 3 * 2001)


def test_the_longer_of_moving_and_computing_bounds_each_launch() -> None:
    gpu = Gpu("small", bandwidth=100, flops=10, memory=1)
    works = [Work("a", 200, 10), Work("a", 200, 50), Work("b", 100, 0)]
    kinds = kinds_of(works, (gpu,))
    assert [(kind.name, kind.launches, kind.seconds) for kind in kinds] == [
        ("a", 2, (2 + 5,)),
        ("b", 1, (1,)),
    ]
    whole = together(kinds, "all")
    assert (whole.launches, whole.bytes, whole.flops, whole.seconds) == (3, 500, 60, (8,))


def test_a_mixture_of_formats_and_what_it_takes() -> None:
    """32 layers: 4 at either end and every third of the others have more bits."""
    program = program_of(CONFIGS["llama-8b"])
    layouts = layouts_of(program, "q4_k_m")
    more = {name for name, layout in layouts.items() if layout == "Q6_K"}
    layers = (*range(4), *range(6, 28, 3), *range(28, 32))
    assert more == {"lm_head.weight"} | {
        f"model.layers.{layer}.{part}.weight"
        for layer in layers
        for part in ("self_attn.v_proj", "mlp.down_proj")
    }
    assert set(layouts.values()) == {"Q4_K", "Q6_K"}
    small = layouts_of(program_of(CONFIGS["smollm2"]), "q4_k_m")
    # Rows of 576 are no superblocks, rows of 1536 are.
    assert set(small.values()) == {"Q5_0", "Q8_0", "Q4_K", "Q6_K"}
    # The published file of 4.92 GB has its embedding as well, and scales in 6 bits instead of 8.
    assert 4.6e9 < resident_bytes(program, layouts, Decoding(0, 0)) < 4.9e9


def test_readme_has_the_tables() -> None:
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    for table in readme_tables():
        assert table in readme, "`just roofline --markdown` prints it anew"


def test_kernels_are_timed_on_the_device_at_hand() -> None:
    device = require_device()
    cases: list[Case] = [Prefill(5), Decode(3, 2), Decode(3, 2, 8)]
    measured = measure(device, "smollm2", "q8_0", 1, cases, rounds=1)
    assert {sequences: [one.launches for one in sorted(each, key=lambda one: one.name)]
            for sequences, each in measured.kernels.items()} == {
        1: [1, 5, 1, 3, 1],
        8: [1, 5, 1, 3, 1],
    }  # fmt: skip
    assert all(one.seconds > 0 for each in measured.kernels.values() for one in each)
    console = Console(record=True, width=100)
    report(console, "a title", measured, bandwidth=30.0)
    text = console.export_text()
    assert "matmul Q8_0" in text
    assert "of the stated bandwidth" in text
    assert "launches a token: 4, enqueued in " in text


def test_a_device_that_is_not_there_is_refused() -> None:
    require_device()
    with pytest.raises(Refusal, match="there is no device 99; they are listed above"):
        choose(99, Console(quiet=True))
