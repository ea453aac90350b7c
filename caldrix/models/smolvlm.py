"""Family smolvlm: a SigLIP tower, a pixel shuffle connector, and a Llama that reads the features.

Idefics3's design, in the sizes of SmolVLM; SmolVLM2 has the same layout under another model type.
"""

from __future__ import annotations

from collections.abc import Mapping

from caldrix.models.family import Family
from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.models.llama import text_program
from caldrix.models.program import Program
from caldrix.models.tensors import NamedTensors
from caldrix.models.vision_tower import CHANNELS, Tower, TowerSizes, siglip_tower

# Published config.json files leave out what their authors' code has as its default.
_DEFAULTS: Mapping[str, object] = {"scale_factor": 2, "tie_word_embeddings": False}
_VISION_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-6,
}
_VISION_TYPES = ("idefics3", "idefics3_vision", "smolvlm_vision", "siglip_vision_model")


def _from_config(config: Fields, tensors: NamedTensors) -> Program:
    return text_program("smolvlm", _text(config), tensors)


def _text(config: Fields) -> Fields:
    """The text part; whether its output matrix is tied is said outside of it."""
    config = config.with_defaults(_DEFAULTS)
    text = config.section("text_config")
    text.require("model_type", "llama")
    text.require("qk_layer_norms", False)
    text.require("rope_interleaved", False)
    text.require("use_resampler", False)
    tied = config.flag("tie_word_embeddings")
    return Fields(text.where, {**text.values, "tie_word_embeddings": tied})


def _tower(config: Fields, tensors: NamedTensors) -> Tower:
    config = config.with_defaults(_DEFAULTS)
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("model_type", *_VISION_TYPES)
    vision.require("hidden_act", "gelu_pytorch_tanh")
    vision.require("num_channels", CHANNELS)
    sizes = TowerSizes(
        side=vision.integer("image_size"),
        patch=vision.integer("patch_size"),
        hidden=vision.integer("hidden_size"),
        intermediate=vision.integer("intermediate_size"),
        layers=vision.integer("num_hidden_layers"),
        heads=vision.integer("num_attention_heads"),
        eps=vision.number("layer_norm_eps"),
        factor=config.integer("scale_factor"),
        out=_text(config).integer("hidden_size"),
    )
    sizes.hold_against(tensors, vision.where)
    image_token, vocab = config.integer("image_token_id"), _text(config).integer("vocab_size")
    if image_token >= vocab:
        raise UnsupportedModel(
            f"{config.where}: image_token_id {image_token} is not in a vocabulary of {vocab}"
        )
    return Tower(siglip_tower("smolvlm", sizes), sizes.side, sizes.patch, image_token)


FAMILY = Family(
    name="smolvlm",
    model_types=frozenset({"idefics3", "smolvlm"}),
    architectures=frozenset(),
    from_config=_from_config,
    tower=_tower,
)
