"""The tokenizer files of a model directory: which tokens start and end a text.

tokenizer.json is the tokenizer itself. Beside it, tokenizer_config.json (or, in older exports,
special_tokens_map.json) names the special tokens, and generation_config.json (or config.json)
says which of them end a generation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen
from tokenizers import AddedToken

from caldrix import files
from caldrix.errors import Refusal
from caldrix.text.errors import TokenizerRefusal


@frozen
class TokenizerFiles:
    """What the files beside tokenizer.json say. None where they say nothing."""

    bos_token: str | None
    eos_token: str | None
    add_bos: bool | None
    add_eos: bool | None
    end_ids: frozenset[int]
    added_tokens: Mapping[int, AddedToken] = field(eq=False)
    """Tokens to add that an older tokenizer.json may lack, by id."""


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Read the files of ``directory``; raises TokenizerRefusal for one that is not understood."""
    config = read_json_object(directory / "tokenizer_config.json")
    names = read_json_object(directory / "special_tokens_map.json") | config
    return TokenizerFiles(
        bos_token=_token(names.get("bos_token"), directory, "bos_token"),
        eos_token=_token(names.get("eos_token"), directory, "eos_token"),
        add_bos=_flag(config, "add_bos_token", directory),
        add_eos=_flag(config, "add_eos_token", directory),
        end_ids=_end_ids(directory),
        added_tokens=_added_tokens(config.get("added_tokens_decoder"), directory),
    )


def read_json_object(path: Path, refusal: type[Refusal] = TokenizerRefusal) -> dict[str, object]:
    """The JSON object in ``path``, empty when there is no such file; raises ``refusal``."""
    # A link to nowhere is a broken file, not a missing one.
    return files.read_json_object(path, refusal=refusal) if os.path.lexists(path) else {}


def _token(value: object, directory: Path, key: str) -> str | None:
    """A special token's text: a string, or an object with its ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise TokenizerRefusal(f"{directory}: {key} must be a string or an object with a content")


def _flag(config: Mapping[str, object], key: str, directory: Path) -> bool | None:
    value = config.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise TokenizerRefusal(f"{directory / 'tokenizer_config.json'}: {key} must be true or false")


def _end_ids(directory: Path) -> frozenset[int]:
    """``eos_token_id`` of the generation settings, one id or several."""
    for name in ("generation_config.json", "config.json"):
        settings = read_json_object(directory / name)
        inner = settings.get("text_config")
        value = settings.get("eos_token_id")
        if value is None and isinstance(inner, dict):
            value = inner.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
            raise TokenizerRefusal(
                f"{directory / name}: eos_token_id must be a token id or a list of them"
            )
        return frozenset(ids)
    return frozenset()


def _added_tokens(value: object, directory: Path) -> dict[int, AddedToken]:
    if value is None:
        return {}
    wrong = TokenizerRefusal(
        f"{directory / 'tokenizer_config.json'}: added_tokens_decoder must map token ids to objects"
        " with a content"
    )
    if not isinstance(value, dict):
        raise wrong
    try:
        return {
            int(token_id): AddedToken(
                entry["content"],
                single_word=entry.get("single_word", False),
                lstrip=entry.get("lstrip", False),
                rstrip=entry.get("rstrip", False),
                normalized=entry.get("normalized", False),
                special=entry.get("special", False),
            )
            for token_id, entry in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise wrong from error
