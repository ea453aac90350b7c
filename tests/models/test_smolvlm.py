"""Models that see, by numpy and by the compiled kernels, against transformers.

All compute in float32 and differ only in the order of sums: some 1e-6 relative to the largest
feature, and 3e-6 to the largest logit, in these sizes; the tolerance leaves a factor of three to
ten. A tower in bfloat16 rounds activations and attention to it, each off by up to ``2**-9`` of
itself, which moves these features by up to 5.1e-3; its tolerance is some three times that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import (
    Encoder,
    Features,
    LaneError,
    LaneLost,
    LaneOptions,
    LaneUnavailable,
    Slice,
    find_lane,
)
from caldrix.models.loading import load_model
from caldrix.models.registry import BoundProgram, BoundTower, bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.tensor import Float32
from caldrix_cpu.lane import KERNELS_VARIABLE
from caldrix_cpu.numpy_encoder import numpy_encoder
from caldrix_cpu.tape_encoder import tape_encoder
from caldrix_cpu.variants import Variant
from tests.models.test_families import NUMPY, Kernels
from tests.references import tiny_vision
from tests.references.arrays import load_arrays
from tests.support.compiled import BEST, EXECUTABLE, float_tensor, named
from tests.support.tiny_model import write_tiny_model

REFERENCES = Path(__file__).parents[1] / "references" / "data" / "smolvlm.npz"
TOLERANCE = 1e-5
BFLOAT_TOLERANCE = 1.5e-2
OPTIONS = LaneOptions(context=64)

IN_FLOAT32 = (NUMPY, *(Kernels(variant) for variant in EXECUTABLE))
every_name = pytest.mark.parametrize("name", tiny_vision.CONFIGS)
every_kernel = pytest.mark.parametrize("kernels", IN_FLOAT32, ids=str)


@cache
def reference(of: str) -> Float32:
    return load_arrays(REFERENCES)[of]


@pytest.fixture
def bound(name: str, tmp_path: Path) -> Iterator[BoundProgram]:
    with open_checkpoint(tiny_vision.write_checkpoint(name, tmp_path)) as checkpoint:
        yield bind(checkpoint)


def tower_of(bound: BoundProgram) -> BoundTower:
    assert bound.tower is not None
    return bound.tower


def encoder(kernels: Kernels, tower: BoundTower) -> AbstractContextManager[Encoder]:
    program = tower.tower.program
    if kernels.variant is None:
        return numpy_encoder(program, tower.weights, OPTIONS)
    return tape_encoder(program, tower.weights, OPTIONS, kernels.variant)


def features_by(kernels: Kernels, name: str, tower: BoundTower) -> Float32:
    """``[tiles, tokens, width]``."""
    with encoder(kernels, tower) as running:
        rows = [tower.tower.patches(tile) for tile in tiny_vision.tiles(name)]
        return np.stack([running.encode(each) for each in rows])


def difference(computed: Float32, expected: Float32) -> float:
    """The largest, relative to the largest number expected."""
    assert computed.shape == expected.shape
    return float(np.abs(computed - expected).max() / np.abs(expected).max())


@every_name
@every_kernel
def test_features_equal_the_reference(name: str, kernels: Kernels, bound: BoundProgram) -> None:
    tower = tower_of(bound)
    features = features_by(kernels, name, tower)
    assert features.shape[1:] == (tower.tower.tokens, bound.program.operations[0].out.width)
    assert difference(features, reference(f"{name}-features")) < TOLERANCE


@every_name
@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
def test_a_tower_in_bfloat16(name: str, variant: Variant, bound: BoundProgram) -> None:
    rounded = BoundTower(
        tower_of(bound).tower,
        {
            each: float_tensor(tensor.to_float32(), "BF16", each)
            for each, tensor in tower_of(bound).weights.items()
        },
    )
    expected = features_by(NUMPY, name, rounded)
    moved = difference(features_by(Kernels(variant), name, rounded), expected)
    assert moved < (BFLOAT_TOLERANCE if variant.dot else TOLERANCE)
    # The same values in a float32 file are multiplied with float32 activations.
    widened = BoundTower(
        rounded.tower,
        {each: float_tensor(t.to_float32(), name=each) for each, t in rounded.weights.items()},
    )
    assert difference(features_by(Kernels(variant), name, widened), expected) < TOLERANCE


def prompted(name: str, features: Float32) -> tuple[np.ndarray, Features]:
    """The prompt, and what stands for its image tokens."""
    tokens = np.array(tiny_vision.prompt(name), np.int64)
    places = np.flatnonzero(tokens == tiny_vision.IMAGE_TOKEN)
    return tokens, Features(places, features.reshape(len(places), -1))


@every_name
@pytest.mark.parametrize("cuts", [(), (1, 3, 6, 17), tuple(range(1, 40))], ids=len)
@every_kernel
def test_logits_of_a_prompt_with_images_equal_the_reference(
    name: str, cuts: tuple[int, ...], kernels: Kernels, bound: BoundProgram
) -> None:
    """However the prompt is sliced, through an image as well, and with another row beside it."""
    tokens, features = prompted(name, reference(f"{name}-features"))
    parts = []
    with kernels.executor(bound.program, bound.weights) as executor:
        for start, stop in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
            wanted = stop - start
            slices = [
                Slice(0, start, tokens[start:stop]),
                Slice(1, start, tokens[start:stop], wanted, features.within(start, stop)),
            ]
            parts.append(executor.step(slices).copy())
        logits = np.concatenate(parts)[list(tiny_vision.CHECKED_POSITIONS)]
        assert difference(logits, reference(f"{name}-logits")) < TOLERANCE
        blind = executor.step([Slice(0, 0, tokens, len(tokens))]).copy()
    # Images change all that comes after them, and nothing before.
    first = int(features.places[0])
    checked = np.array(tiny_vision.CHECKED_POSITIONS)
    apart = np.abs(blind[checked] - reference(f"{name}-logits")).max(axis=1)
    assert (apart[checked < first] < 1e-4).all()
    assert (apart[checked >= first] > 1e-2).all()


@pytest.mark.parametrize("name", ["idefics3"])
@pytest.mark.parametrize("kernels", [NUMPY, Kernels(BEST)], ids=str)
def test_features_are_refused_that_are_not_for_their_slice(
    kernels: Kernels, bound: BoundProgram
) -> None:
    tokens = np.arange(6)
    with pytest.raises(LaneError, match=r"features .* are not rows for 2 tokens"):
        Features(np.array([1, 2]), np.zeros((3, 48), np.float32))
    for places in ([2, 1], [1, 1], [-1, 1]):
        with pytest.raises(LaneError, match="in their order, each once"):
            Features(np.array(places), np.zeros((2, 48), np.float32))
    with pytest.raises(LaneError, match="past the slice's 6"):
        Slice(0, 0, tokens, 1, Features(np.array([6]), np.zeros((1, 48), np.float32)))
    narrow = Features(np.array([1]), np.zeros((1, 1), np.float32))
    with (
        kernels.executor(bound.program, bound.weights) as executor,
        pytest.raises(LaneError, match="features are 1 wide, and the model's embeddings 48"),
    ):
        executor.step([Slice(0, 0, tokens, 1, narrow)])


def test_features_of_a_part_are_counted_from_it() -> None:
    features = Features(np.array([2, 3, 9]), np.arange(6, dtype=np.float32).reshape(3, 2))
    part = features.within(3, 10)
    assert part is not None
    assert part.places.tolist() == [0, 6]
    assert part.rows.tolist() == [[2, 3], [4, 5]]
    assert features.within(4, 9) is features.within(10, 20) is None


@pytest.mark.parametrize("name", ["smolvlm"])
def test_features_reach_their_tokens_in_a_slice_of_several_runs(bound: BoundProgram) -> None:
    """Compiled kernels take 512 tokens at a time."""
    tokens = np.arange(600) % 80
    places = np.array([0, 300, 511, 512, 599])
    rows = np.random.default_rng(0).standard_normal((len(places), 48)).astype(np.float32)
    features = Features(places, rows)
    options = LaneOptions(context=640, kv_dtype="f32")
    with find_lane("cpu").compile(bound.program, bound.weights, options) as executor:
        whole = executor.step([Slice(0, 0, tokens, 1, features)]).copy()
        for token in range(590):
            part = features.within(token, token + 1)
            executor.step([Slice(0, token, tokens[token : token + 1], 0, part)])
        last = Slice(0, 590, tokens[590:], 1, features.within(590, 600))
        np.testing.assert_array_equal(executor.step([last]), whole)


@pytest.mark.parametrize("name", ["idefics3"])
@pytest.mark.parametrize("kernels", [NUMPY, Kernels(BEST)], ids=str)
def test_an_encoder_takes_its_own_rows_while_its_block_lasts(
    kernels: Kernels, bound: BoundProgram
) -> None:
    rows = np.zeros((16, 192), np.float32)
    with encoder(kernels, tower_of(bound)) as running:
        running.encode(rows)
        others: list[Any] = [rows[:15], rows[:, :191], rows.astype(np.float64)]
        for other in others:
            with pytest.raises(LaneError, match=r"float32 rows \(16, 192\) was given"):
                running.encode(other)
    with pytest.raises(LaneLost, match="block was left"):
        running.encode(rows)


def test_positions_are_the_reference_s_for_published_sizes() -> None:
    """It finds a patch by its coordinates, which is the patch's index but for its rounding."""
    by_side = dict(zip(tiny_vision.SIDES, reference("places"), strict=True))
    rounded = {
        side for side, found in by_side.items() if found[:side].tolist() != list(range(side))
    }
    # 364, 384 and 512 pixels in patches of 14 and 16, and the tiny checkpoints.
    assert not rounded & {4, 9, 26, 27, 32}
    assert rounded == {19, 25, 29, 31, 38, 40, 41, 43, 47, 49, 50, 54, 55, 58, 59, 61, 62}


def changed(name: str, changes: Mapping[str, object], directory: Path) -> Path:
    """A checkpoint whose config.json has other values, by their dotted names, or None for none."""
    config = json.loads(json.dumps(tiny_vision.CONFIGS[name]))
    for dotted, value in changes.items():
        *sections, key = dotted.split(".")
        section = config
        for each in sections:
            section = section[each]
        section[key] = value
    tiny_vision.write_checkpoint(name, directory)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vision_config": None}, "lacks vision_config"),
        ({"text_config": None}, "lacks text_config"),
        ({"image_token_id": None}, "lacks image_token_id"),
        ({"image_token_id": 96}, "image_token_id 96 is not in a vocabulary of 96"),
        ({"scale_factor": 3}, "4 patches a side don't divide into squares of 3"),
        ({"scale_factor": 4}, "modality_projection.proj.weight has shape [48, 128]"),
        ({"text_config.model_type": "mistral"}, "model_type is 'mistral', which is not supported"),
        ({"text_config.qk_layer_norms": True}, "qk_layer_norms is True, which is not supported"),
        ({"text_config.use_resampler": True}, "use_resampler is True, which is not supported"),
        ({"text_config.rope_interleaved": True}, "rope_interleaved is True, which is not"),
        ({"vision_config.model_type": "clip"}, "model_type is 'clip', which is not supported"),
        ({"vision_config.hidden_act": "gelu"}, "hidden_act is 'gelu', which is not supported"),
        ({"vision_config.num_channels": 1}, "num_channels is 1, which is not supported"),
        ({"vision_config.image_size": [32, 32]}, "image_size is [32, 32], not a whole number"),
        ({"vision_config.image_size": 4}, "0 patches a side don't divide"),
        ({"vision_config.image_size": 2**30}, "position_embedding.weight has shape [16, 32]"),
        ({"vision_config.patch_size": 4}, "patch_embedding.weight has shape [32, 3, 8, 8]"),
        ({"vision_config.hidden_size": 10**9}, "patch_embedding.weight has shape [32, 3, 8, 8]"),
        ({"vision_config.num_attention_heads": 3}, "width of 32 does not divide into 3 heads"),
        ({"vision_config.num_hidden_layers": 10**9}, "layers, but the tensors are of 3"),
        ({"vision_config.num_hidden_layers": 2}, "2 layers, but the tensors are of 3"),
        ({"vision_config.intermediate_size": None}, "fc1.weight has shape [56, 32]"),
        ({"vision_config.layer_norm_eps": 0}, "layer_norm_eps is 0, not a positive number"),
    ],
    ids=str,
)
def test_what_it_does_not_see_with_is_refused_by_name(
    changes: Mapping[str, object], expected: str, tmp_path: Path
) -> None:
    path = changed("idefics3", changes, tmp_path)
    with open_checkpoint(path) as checkpoint, pytest.raises(UnsupportedModel) as refusal:
        bind(checkpoint)
    assert tmp_path.name in str(refusal.value)
    assert expected in str(refusal.value)


@pytest.mark.parametrize("kernels", ["auto", "numpy"])
def test_a_loaded_model_has_what_it_sees_with(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "numpy":
        monkeypatch.setenv(KERNELS_VARIABLE, kernels)
    write_tiny_model(tmp_path, "idefics3")
    tiles = tiny_vision.tiles("idefics3")
    with load_model(tmp_path, lane=find_lane("cpu")) as model:
        assert model.vision is not None
        tower = model.vision.tower
        assert (tower.side, tower.image_token, tower.tokens) == (32, tiny_vision.IMAGE_TOKEN, 4)
        features = np.stack([model.vision.encode(tile) for tile in tiles])
    assert difference(features, reference("idefics3-features")) < TOLERANCE


def test_a_text_model_sees_nothing(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    with load_model(tmp_path, lane=find_lane("cpu")) as model:
        assert model.vision is None


def test_a_budget_of_weights_holds_the_tower_first(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "idefics3")
    lane = find_lane("cpu")
    with load_model(tmp_path, lane=lane) as model:
        assert model.vision is not None
        takes = model.vision.encoder.weight_bytes
    expected = f"takes {takes}; choose a larger budget"
    with (
        pytest.raises(LaneUnavailable, match=expected),
        load_model(tmp_path, lane=lane, weight_budget=takes - 1),
    ):
        pass
    tokens, features = prompted("idefics3", reference("idefics3-features"))
    with load_model(tmp_path, lane=lane, weight_budget=takes, kv_dtype="f32") as model:
        logits = model.executor.step([Slice(0, 0, tokens, len(tokens), features)])
        checked = logits[list(tiny_vision.CHECKED_POSITIONS)]
        assert difference(checked, reference("idefics3-logits")) < TOLERANCE
