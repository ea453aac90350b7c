"""A small random model that chats, so that a load is of requests and not of arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from tests.references import tiny
from tests.support import miniature
from tests.support.byte_tokenizer import byte_tokenizer

CONTEXT = 32_768
"""So much that an answer without an end is not done before it is missed that its client left."""


def write_model(directory: Path, name: str = "qwen3", *, labels: int = 26) -> Path:
    """One of `tiny` whose tokens are bytes and labels, with a chat template; its directory."""
    directory.mkdir(parents=True)
    library = byte_tokenizer(labels=labels)
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
