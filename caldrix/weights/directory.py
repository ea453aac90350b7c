"""A model directory's small files: configuration, tokenizer, templates, read strictly."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from caldrix.weights.errors import CorruptFile, printable

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"

# Real tokenizers reach 35 MB.
_MAX_BYTES = 256 << 20


@frozen
class ModelDirectory:
    """A directory with a model's files beside its weights."""

    path: Path

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.path / name).is_file()

    def read_text(self, name: str, *, limit: int = _MAX_BYTES) -> str:
        """A file's text.

        Raises CorruptFile when it is missing, over ``limit`` bytes, or not UTF-8.
        """
        return _read_text(self.path / name, limit)

    def read_json(self, name: str, *, limit: int = _MAX_BYTES) -> dict[str, Any]:
        """A file's JSON object, its keys in order.

        Raises CorruptFile as `read_text` does, and for anything that is not one strict JSON object:
        a duplicate key, NaN or Infinity, or nesting too deep to read.
        """
        path = self.path / name
        return parse_json_object(_read_text(path, limit), str(path))


def parse_json_object(text: str, where: str) -> dict[str, Any]:
    """Parse strict JSON whose top is an object; ``where`` names it in CorruptFile's sentence."""

    def fail(what: str) -> NoReturn:
        raise CorruptFile(f"{where}: {printable(what)}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            fail(f"the key {twice} is there twice in one object")
        return members

    def no_constant(name: str) -> NoReturn:
        fail(f"{name} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        fail(f"it is not JSON: {error}")
    except RecursionError:
        fail("its JSON is nested too deeply to read")
    except ValueError:
        # The only other one: more digits than Python converts.
        fail("it holds an integer of more than 4300 digits")
    if not isinstance(value, dict):
        fail("its JSON is not an object")
    return value


def _read_text(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except FileNotFoundError:
        raise CorruptFile(f"{path} is missing") from None
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > limit:
        raise CorruptFile(f"{path} is over the limit of {limit} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise CorruptFile(f"{path} is not valid UTF-8") from None
