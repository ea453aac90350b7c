"""Where a model keeps its chat template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from caldrix import files
from caldrix.text.errors import TemplateRefusal
from caldrix.text.tokenizer_files import read_json_object


def template_of_directory(directory: Path) -> str | None:
    """The source of a model directory's chat template, None when it has none.

    chat_template.jinja comes before tokenizer_config.json, and that before the
    chat_template.json of processors. Of several named templates it is the one named ``default``.
    Raises TemplateRefusal when a file cannot be read or holds something else.
    """
    path = directory / "chat_template.jinja"
    if os.path.lexists(path):
        return files.read_text(path, refusal=TemplateRefusal)
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = directory / name
        value = read_json_object(path, TemplateRefusal).get("chat_template")
        if value is not None:
            return _source(value, path)
    return None


def template_of_gguf(metadata: Mapping[str, object]) -> str | None:
    """The source of a GGUF file's chat template, None when it has none; raises TemplateRefusal."""
    value = metadata.get("tokenizer.chat_template")
    if value is None or isinstance(value, str):
        return value
    raise TemplateRefusal("tokenizer.chat_template must be a string; convert the model again")


def _source(value: object, path: Path) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {
            entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)
        }
        default = named.get("default")
        if isinstance(default, str):
            return default
    raise TemplateRefusal(
        f"{path}: chat_template must be a string, or a list with a template named 'default'"
    )
