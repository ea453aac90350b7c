"""A whole checkpoint of a few kilobytes, weights and tokenizer, for tests that load one."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.references import tiny, tiny_vision


def write_tiny_model(directory: Path, name: str = "qwen3") -> None:
    """A model of `tiny` or `tiny_vision`, of 96 tokens, with a tokenizer of 256: a token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    write = tiny.write_checkpoint if name in tiny.CONFIGS else tiny_vision.write_checkpoint
    write(name, directory)
    library.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
