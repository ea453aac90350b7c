"""decider_config.json: that a model is a decider, and in which form it was trained to be asked.

The file is read strictly. A key that is passed over, or a form that is not built, would change
every answer without a sign of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import frozen

from caldrix.decisions.labels import MOST_LABELS
from caldrix.errors import quoted
from caldrix.files import read_json_object
from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.weights.errors import CorruptFile

DECIDER_CONFIG = "decider_config.json"
"""Its name in a model's directory."""
MAX_BYTES = 64 << 10

_UNBUILT: Mapping[str, tuple[object, ...]] = {
    "neutralize_none": (False,),
    "schema_first": (False, None),
    "schema_first_trained": (False, None),
    "chat_template": (False, None, "plain"),
    "layout": (False, None, "plain"),
    "images": (False, None),
    "temperature_by_type": (False, None, {}),
    "temperature_by_options": (False, None, {}),
    "temperature_schema_first": (False, None),
    "second_reading": (False, None, {}),
}
"""Forms that are not built, and the values by which a config says that it does not use one."""

_REQUIRED = ("temperature", "neutralize_none")
_NUMBERS_AND_FLAGS = ("temperature", "isolated_levels", "max_options", "max_state_tokens")
_NOTES = ("version", "release_date")
"""Strings that nothing hangs on."""


@frozen(kw_only=True)
class DeciderConfig:
    """How a decider is asked."""

    temperature: float
    """What label logits are divided by: positive, as a 32-bit float too."""
    isolated_levels: bool = False
    """Whether the levels of a score are asked one at a time."""
    max_options: int = MOST_LABELS
    """Of a choice, from 2 to `MOST_LABELS`."""
    max_state_tokens: int = 32_768


def find_decider_config(path: Path) -> DeciderConfig | None:
    """The config in a model's directory, or beside its one file; None for any other model.

    Raises what `read_decider_config` does.
    """
    config = (path if path.is_dir() else path.parent) / DECIDER_CONFIG
    return read_decider_config(config) if os.path.lexists(config) else None


def read_decider_config(path: Path) -> DeciderConfig:
    """The config in a file.

    Raises CorruptFile for a file that can't be read as a JSON object, or is over `MAX_BYTES`, and
    UnsupportedModel for a key that is unknown, missing, wrong, or asks for a form not built.
    """
    values = read_json_object(path, refusal=CorruptFile, limit=MAX_BYTES)
    _check_keys(path, values)
    _check_forms(path, values)
    fields = Fields(str(path), values)
    for key in _NOTES:
        if key in values:
            fields.text(key)
    return DeciderConfig(
        temperature=_temperature(path, fields),
        isolated_levels=fields.flag("isolated_levels", False),
        max_options=_max_options(path, fields),
        max_state_tokens=fields.integer("max_state_tokens", 32_768),
    )


def _check_keys(path: Path, values: Mapping[str, object]) -> None:
    for key in values:
        if key not in (*_NUMBERS_AND_FLAGS, *_NOTES, *_UNBUILT):
            raise UnsupportedModel(
                f"{path}: the key {quoted(key)} is not known to this release, so the model can't"
                " be asked as it was trained; use a newer release or another model"
            )
    for key in _REQUIRED:
        if key not in values:
            raise UnsupportedModel(f"{path} lacks {key}; fetch the model again")
    for key in (*_NUMBERS_AND_FLAGS, *_NOTES):
        # Elsewhere a null is read like a missing key, and would take the default.
        if key in values and values[key] is None:
            raise UnsupportedModel(f"{path}: {key} is null; fetch the model again")


def _check_forms(path: Path, values: Mapping[str, object]) -> None:
    for key, unused in _UNBUILT.items():
        if key in values and not any(_same(values[key], value) for value in unused):
            takes = " or ".join(map(json.dumps, unused))
            raise UnsupportedModel(
                f"{path}: {key} is {quoted(values[key])}, a form that this release does not build"
                f" (it takes {takes}); use a newer release or another model"
            )


def _same(value: object, other: object) -> bool:
    """Whether they are the same JSON: to Python, 0 is False."""
    return type(value) is type(other) and value == other


def _temperature(path: Path, fields: Fields) -> float:
    temperature = fields.number("temperature")
    with np.errstate(over="ignore"):
        narrowed = np.float32(temperature)
    if not 0 < narrowed < np.inf:
        raise UnsupportedModel(
            f"{path}: temperature is {temperature!r}, past what a 32-bit float holds; fetch the"
            " model again"
        )
    return temperature


def _max_options(path: Path, fields: Fields) -> int:
    most = fields.integer("max_options", MOST_LABELS, least=2)
    if most > MOST_LABELS:
        raise UnsupportedModel(
            f"{path}: max_options is {most}, and there are {MOST_LABELS} labels at most; use"
            " another model"
        )
    return most
