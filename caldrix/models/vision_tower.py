"""SigLIP's vision tower and the connector behind it: from a tile of pixels to rows of a text step.

A tile is cut into square patches, each projected and given the position of its place; layers of
unmasked attention follow. The connector puts squares of neighbouring patches side by side and
projects them to the width of the text model's embeddings (SigLIP: Zhai et al., 2023; the connector
is Idefics3's: Laurençon et al., 2024).

The reference pads pictures that don't fill a tile, and hides the padding. Here every tile is whole:
``side * side`` pixels, none hidden. The reference finds a patch's position by its coordinates,
fractions of the picture, among as many equal intervals as the tile has patches a side; in a whole
tile that is the patch's own index. (It rounds to float32, and so misses by one on a few sides that
no published model has.)
"""

from __future__ import annotations

import itertools

import numpy as np
from attrs import frozen

from caldrix.models.encoder_program import EncoderBuilder, EncoderProgram
from caldrix.models.fields import UnsupportedModel
from caldrix.models.program import Activation, Value
from caldrix.models.tensors import NamedTensors
from caldrix.weights.tensor import Float32

CHANNELS = 3
"""Red, green, blue."""

_TOWER = "model.vision_model"
_PATCHES = f"{_TOWER}.embeddings.patch_embedding"
_POSITIONS = f"{_TOWER}.embeddings.position_embedding.weight"
_FINAL_NORM = f"{_TOWER}.post_layernorm"
_CONNECTOR = "model.connector.modality_projection.proj.weight"


@frozen
class TowerSizes:
    """What a tower is built from."""

    side: int
    """Pixels of a tile's side."""
    patch: int
    """Pixels of a patch's side."""
    hidden: int
    intermediate: int
    layers: int
    heads: int
    eps: float
    factor: int
    """The connector puts squares of ``factor * factor`` patches side by side."""
    out: int
    """Width of the features: the text model's embedding."""

    @property
    def patches_a_side(self) -> int:
        """Whole patches; pixels past the last one have no part in anything."""
        return self.side // self.patch

    @property
    def pixels(self) -> int:
        """Numbers in a patch."""
        return CHANNELS * self.patch**2

    def hold_against(self, tensors: NamedTensors, where: str) -> None:
        """Refuses sizes that contradict each other or the tensors, before a program is built.

        ``where`` names the file with the sizes. Raises UnsupportedModel.
        """
        if self.hidden % self.heads:
            raise UnsupportedModel(
                f"{where}: a width of {self.hidden} does not divide into {self.heads} heads"
            )
        if self.patches_a_side < 1 or self.patches_a_side % self.factor:
            raise UnsupportedModel(
                f"{where}: {self.patches_a_side} patches a side don't divide into squares of "
                f"{self.factor}"
            )
        tensors.read_shaped(f"{_PATCHES}.weight", (self.hidden, CHANNELS, self.patch, self.patch))
        tensors.read_shaped(_POSITIONS, (self.patches_a_side**2, self.hidden))
        present = next(
            layer for layer in itertools.count() if f"{_norm(layer, 1)}.weight" not in tensors
        )
        if present != self.layers:
            raise UnsupportedModel(
                f"{where}: it describes {self.layers} layers, but the tensors are of {present}"
            )


@frozen
class Tower:
    """A vision tower and its connector, and what a prompt needs to know of them."""

    program: EncoderProgram
    side: int
    """Pixels of a tile's side."""
    patch: int
    """Pixels of a patch's side."""
    image_token: int
    """The id of the token that a row of features takes the place of."""

    @property
    def tokens(self) -> int:
        """Rows of features, and so image tokens, of a tile."""
        return self.program.features[0]

    def patches(self, tile: Float32) -> Float32:
        """A tile's ``[3, side, side]`` pixels as the program takes them: a row for each patch.

        Patches come row by row; a patch's numbers are ``[3, patch, patch]``.
        """
        assert tile.shape == (CHANNELS, self.side, self.side), tile.shape
        count, size = self.side // self.patch, self.patch
        whole = tile[:, : count * size, : count * size]
        cut = whole.reshape(CHANNELS, count, size, count, size).transpose(1, 3, 0, 2, 4)
        return np.ascontiguousarray(cut.reshape(count**2, -1), np.float32)


def _layer(index: int) -> str:
    return f"{_TOWER}.encoder.layers.{index}"


def _norm(layer: int, number: int) -> str:
    return f"{_layer(layer)}.layer_norm{number}"


def siglip_tower(family: str, sizes: TowerSizes) -> EncoderProgram:
    """The program of a tower and its connector."""
    b = EncoderBuilder(family, rows=sizes.patches_a_side**2)
    x = b.input(sizes.pixels)
    convolution = (sizes.hidden, CHANNELS, sizes.patch, sizes.patch)
    x = b.linear(x, f"{_PATCHES}.weight", sizes.hidden, bias=f"{_PATCHES}.bias", shape=convolution)
    x = b.add_table(x, _POSITIONS)
    for index in range(sizes.layers):
        h = b.layer_norm(x, _norm(index, 1), eps=sizes.eps)
        x = b.add(x, _attention(b, h, index, sizes))
        h = b.layer_norm(x, _norm(index, 2), eps=sizes.eps)
        x = b.add(x, _mlp(b, h, index, sizes))
    x = b.layer_norm(x, _FINAL_NORM, eps=sizes.eps)
    x = b.pixel_shuffle(x, sizes.factor)
    b.linear(x, _CONNECTOR, sizes.out)
    return b.build()


def _attention(b: EncoderBuilder, x: Value, layer: int, sizes: TowerSizes) -> Value:
    q, k, v = (_project(b, x, layer, f"self_attn.{part}_proj", sizes.hidden) for part in "qkv")
    scale = (sizes.hidden // sizes.heads) ** -0.5
    attended = b.attend_all(q, k, v, heads=sizes.heads, scale=scale)
    return _project(b, attended, layer, "self_attn.out_proj", sizes.hidden)


def _mlp(b: EncoderBuilder, x: Value, layer: int, sizes: TowerSizes) -> Value:
    h = _project(b, x, layer, "mlp.fc1", sizes.intermediate)
    return _project(b, b.activate(h, Activation.GELU_TANH), layer, "mlp.fc2", sizes.hidden)


def _project(b: EncoderBuilder, x: Value, layer: int, part: str, width: int) -> Value:
    name = f"{_layer(layer)}.{part}"
    return b.linear(x, f"{name}.weight", width, bias=f"{name}.bias")
