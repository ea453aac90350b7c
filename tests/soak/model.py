"""A small random model that chats, so that a load is of requests and not of arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from tests.references import tiny
from tests.support import miniature

CONTEXT = 32_768
"""So much that an answer without an end is not done before it is missed that its client left."""


def write_model(directory: Path, name: str = "qwen3") -> Path:
    """One of `tiny` whose tokens are bytes, with a chat template; returns its directory."""
    directory.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([miniature.START, miniature.END])
    library.save(str(directory / "tokenizer.json"))
    texts = {"eos_token": miniature.END, "chat_template": miniature.CHATML}
    (directory / "tokenizer_config.json").write_text(json.dumps(texts))
    config = {
        **tiny.CONFIGS[name],
        "vocab_size": library.get_vocab_size(),
        "max_position_embeddings": CONTEXT,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = tiny.weights_of(config, seed=1)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
