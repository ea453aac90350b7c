"""A small random model with eyes in SmolVLM's layout, with all the files that such a model has."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from tests.references import tiny_vision, vision_pictures

SIDE = 32
"""Pixels of a tile's side."""
TOKENS_PER_TILE = 4

TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}:"
    "{% if message.content[0].type != 'image' %} {% endif %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""What a template of SmolVLM's kind does with parts."""


def write_vision_model(directory: Path, *, context: int = 32_768) -> Path:
    """Random weights; tokens are bytes and those of images. Returns the directory."""
    directory.mkdir(parents=True)
    library = vision_pictures.tokenizer()
    library.save(str(directory / "tokenizer.json"))
    texts = {"eos_token": "<end_of_utterance>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(texts))
    vocab_size = library.get_vocab_size()
    base = tiny_vision.CONFIGS["idefics3"]
    text = {**base["text_config"], "vocab_size": vocab_size, "max_position_embeddings": context}
    config = {
        **base,
        "image_token_id": library.token_to_id("<image>"),
        "text_config": text,
        "vocab_size": vocab_size,
    }
    (directory / "config.json").write_text(json.dumps(config))
    preprocessor = {
        **vision_pictures.PREPROCESSOR_CONFIG,
        "max_image_size": {"longest_edge": SIDE},
        "size": {"longest_edge": 4 * SIDE},
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    processor = {"image_seq_len": TOKENS_PER_TILE, "processor_class": "Idefics3Processor"}
    (directory / "processor_config.json").write_text(json.dumps(processor))
    weights = tiny_vision.weights_of(config, seed=1)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
