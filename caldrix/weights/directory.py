"""A model directory's small files: configuration, tokenizer, templates, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from caldrix import files
from caldrix.weights.errors import CorruptFile

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


@frozen
class ModelDirectory:
    """A directory with a model's files beside its weights."""

    path: Path

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.path / name).is_file()

    def read_text(self, name: str, *, limit: int = files.MAX_BYTES) -> str:
        """A file's text.

        Raises CorruptFile when it is missing, no regular file, over ``limit`` bytes, or not UTF-8.
        """
        return files.read_text(self.path / name, limit=limit, refusal=CorruptFile)

    def read_json(self, name: str, *, limit: int = files.MAX_BYTES) -> dict[str, Any]:
        """A file's JSON object, its keys in order.

        Raises CorruptFile as `read_text` does, and for anything that is not one strict JSON object:
        a duplicate key, NaN or Infinity, or nesting too deep to read.
        """
        return files.read_json_object(self.path / name, limit=limit, refusal=CorruptFile)


def parse_json_object(text: str, where: str) -> dict[str, Any]:
    """Parse strict JSON whose top is an object; ``where`` names it in CorruptFile's sentence."""
    return files.parse_json_object(text, where, refusal=CorruptFile)
