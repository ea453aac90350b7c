"""Times a tile through SmolVLM-256M's vision tower beside transformers, in interleaved rounds.

Both have the same random weights in bfloat16, and as many threads; both go from pixels to features
for the text model. It ends with status 1 where our median speed is under 0.9 of transformers', or
where the features differ by more than roundings to bfloat16 make them.

`just bench-vision` runs it where transformers is installed. Run nothing beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
import transformers
from rich.console import Console

from caldrix.bench.bandwidth import usable_threads
from caldrix.cli.options import check_positive
from caldrix.models.lane import LaneOptions, find_lane
from caldrix.models.loading import Vision
from caldrix.models.vision_tower import Tower, TowerSizes, siglip_tower
from caldrix.weights.blocks import FORMATS
from caldrix.weights.tensor import Float32, Tensor
from tests.benchmarks.script import run_script

SIZES = TowerSizes(
    side=512, patch=16, hidden=768, intermediate=3072, layers=12, heads=12, eps=1e-6, factor=4,
    out=576,
)  # fmt: skip
_BAR = 0.9
_MOST_DIFFERENCE = 0.03
"""Relative to the largest feature. Ours are some 0.002 from float32's; transformers rounds what it
carries from layer to layer as well, and both are some 0.013 apart."""


def vision(*, rounds: int = 8, threads: int | None = None) -> int:
    """Time a tile on both sides.

    Parameters
    ----------
    rounds
        How often each side is timed, after one that doesn't count.
    threads
        Threads of each side; as many as there are processors if left out.
    """
    check_positive("--rounds", rounds)
    threads = threads or usable_threads()
    check_positive("--threads", threads)
    model = _transformers(threads)
    tower = Tower(siglip_tower("smolvlm", SIZES), SIZES.side, SIZES.patch, image_token=0)
    weights = _shared(model, tower)
    tile = np.random.default_rng(0).uniform(-1, 1, (3, SIZES.side, SIZES.side)).astype(np.float32)
    lane = find_lane("cpu")
    options = LaneOptions(context=1, threads=threads)
    with lane.compile_encoder(tower.program, weights, options) as encoder:
        ours = Vision(tower, encoder)
        sides: list[Callable[[], Float32]] = [lambda: ours.encode(tile), lambda: _seen(model, tile)]
        features = [side() for side in sides]
        times: list[list[float]] = [[], []]
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                began = time.perf_counter()
                sides[side]()
                times[side].append(time.perf_counter() - began)
    ratios = [theirs / mine for mine, theirs in zip(*times, strict=True)]
    apart = float(np.abs(features[0] - features[1]).max() / np.abs(features[1]).max())
    Console(markup=False, highlight=False, soft_wrap=True).print(
        f"ours {median(times[0]):.3f} s a tile, transformers {transformers.__version__} "
        f"{median(times[1]):.3f} s, {threads} threads; ratio {median(ratios):.2f}, worst round "
        f"{min(ratios):.2f}; features apart by {apart:.4f} of the largest"
    )
    return int(median(ratios) < _BAR or apart > _MOST_DIFFERENCE)


def _transformers(threads: int) -> torch.nn.Module:
    """SmolVLM-256M's tower and connector, with a text model that is not used."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.Idefics3Config(
        scale_factor=SIZES.factor,
        image_token_id=0,
        text_config={
            "model_type": "llama", "hidden_size": SIZES.out, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 9, "vocab_size": 8, "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": SIZES.hidden, "intermediate_size": SIZES.intermediate,
            "num_hidden_layers": SIZES.layers, "num_attention_heads": SIZES.heads,
            "image_size": SIZES.side, "patch_size": SIZES.patch, "layer_norm_eps": SIZES.eps,
        },
    )  # fmt: skip
    model: torch.nn.Module = transformers.Idefics3ForConditionalGeneration(config)
    return model.to(torch.bfloat16).eval()


def _shared(model: torch.nn.Module, tower: Tower) -> dict[str, Tensor]:
    """The model's own weights, bit for bit."""
    state = model.state_dict()
    return {
        name: Tensor(
            name,
            shape,
            FORMATS["BF16"],
            state[name].reshape(-1, shape[-1]).view(torch.uint8).numpy(),
        )
        for name, shape in tower.program.weights.items()
    }


def _seen(model: torch.nn.Module, tile: Float32) -> Float32:
    pixels = torch.from_numpy(tile)[None, None].to(torch.bfloat16)
    with torch.inference_mode():
        (features,) = model.model.get_image_features(pixels).pooler_output
    found: Float32 = features.float().numpy()
    return found


if __name__ == "__main__":
    run_script(vision, "bench-vision")
