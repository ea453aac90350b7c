"""decider_config.json: read strictly, and each fault told with the file and the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caldrix.decisions.decider_config import DECIDER_CONFIG, DeciderConfig, read_decider_config
from caldrix.errors import Refusal
from caldrix.models.fields import UnsupportedModel
from caldrix.weights.errors import CorruptFile

LEAST: dict[str, Any] = {"temperature": 1.03, "neutralize_none": False}


def reading(directory: Path, text: str) -> DeciderConfig:
    path = directory / DECIDER_CONFIG
    path.write_text(text, "utf-8")
    return read_decider_config(path)


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    assert reading(tmp_path, json.dumps(LEAST)) == DeciderConfig(
        temperature=1.03, isolated_levels=False, max_options=255, max_state_tokens=32768
    )


def test_a_published_one(tmp_path: Path) -> None:
    text = (
        '{"temperature":1.3,"version":"v10","isolated_levels":true,"max_options":255,'
        '"schema_first":false,"neutralize_none":false}'
    )
    assert reading(tmp_path, text) == DeciderConfig(temperature=1.3, isolated_levels=True)


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    values = {
        **LEAST,
        "temperature": 2,
        "max_options": 2,
        "max_state_tokens": 1,
        "isolated_levels": False,
        "version": "",
        "release_date": "2026-09-17",
        "schema_first": False,
        "schema_first_trained": None,
        "chat_template": "plain",
        "layout": "plain",
        "images": False,
        "temperature_by_type": {},
        "temperature_by_options": None,
        "temperature_schema_first": False,
        "second_reading": {},
    }
    assert reading(tmp_path, json.dumps(values)) == DeciderConfig(
        temperature=2.0, max_options=2, max_state_tokens=1
    )


UNBUILT: list[tuple[str, Any]] = [
    ("neutralize_none", True),
    ("neutralize_none", None),
    ("neutralize_none", 0),
    ("schema_first", True),
    ("schema_first", 0),
    ("schema_first_trained", True),
    ("chat_template", True),
    ("chat_template", "chatml"),
    ("chat_template", ""),
    ("layout", "chat"),
    ("layout", {}),
    ("images", True),
    ("images", {"size": 512}),
    ("temperature_by_type", {"noul": 1.2}),
    ("temperature_by_options", {"2": 1.2}),
    ("temperature_by_options", []),
    ("temperature_schema_first", 1.1),
    ("second_reading", True),
    ("second_reading", "noul"),
]


@pytest.mark.parametrize(("key", "value"), UNBUILT)
def test_a_form_that_is_not_built(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        reading(tmp_path, json.dumps({**LEAST, key: value}))
    assert str(refused.value).startswith(
        f"{tmp_path / DECIDER_CONFIG}: {key} is {value!r}, a form that this release does not build "
        "(it takes false"
    )


WRONG: list[tuple[str, Any]] = [
    ("temperature", 0),
    ("temperature", -1.0),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", None),
    ("temperature", 1e-60),
    ("temperature", 1e60),
    ("temperature", 10**400),
    ("isolated_levels", 1),
    ("isolated_levels", None),
    ("max_options", 1),
    ("max_options", 256),
    ("max_options", 10.0),
    ("max_options", True),
    ("max_options", None),
    ("max_state_tokens", 0),
    ("max_state_tokens", "32768"),
    ("max_state_tokens", None),
    ("version", 10),
    ("version", None),
    ("release_date", ["2026"]),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_value(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        reading(tmp_path, json.dumps({**LEAST, key: value}))
    assert str(refused.value).startswith(f"{tmp_path / DECIDER_CONFIG}: {key} is ")


@pytest.mark.parametrize("key", list(LEAST))
def test_a_missing_key(tmp_path: Path, key: str) -> None:
    left = {other: value for other, value in LEAST.items() if other != key}
    with pytest.raises(UnsupportedModel) as refused:
        reading(tmp_path, json.dumps(left))
    assert str(refused.value) == f"{tmp_path / DECIDER_CONFIG} lacks {key}; fetch the model again"


def test_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        reading(tmp_path, json.dumps({**LEAST, "Temperature": 1.0}))
    assert str(refused.value) == (
        f"{tmp_path / DECIDER_CONFIG}: the key 'Temperature' is not known to this release, so the "
        "model can't be asked as it was trained; use a newer release or another model"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{'temperature': 1}", "not JSON"),
        ("[]", "not an object"),
        (
            '{"temperature": 1, "neutralize_none": false, "temperature": 2}',
            "'temperature' is there",
        ),
        ('{"temperature": NaN, "neutralize_none": false}', "NaN is not JSON"),
        ('{"temperature": Infinity, "neutralize_none": false}', "Infinity is not JSON"),
        ('{"images": ' + "[" * 30_000 + "]" * 30_000 + "}", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_json_object(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(CorruptFile, match=why) as refused:
        reading(tmp_path, text)
    assert str(tmp_path / DECIDER_CONFIG) in str(refused.value)


def test_a_float_past_all_floats(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="temperature is inf"):
        reading(tmp_path, '{"temperature": 1e400, "neutralize_none": false}')


def test_any_depth_is_a_refusal(tmp_path: Path) -> None:
    # Deep enough to be told of, or too deep to be read, with nothing that escapes in between.
    for depth in range(500, 1001, 10):
        images = "[" * depth + "]" * depth
        with pytest.raises(Refusal, match=r"images is|nested too deeply"):
            reading(tmp_path, f'{{"temperature": 1, "neutralize_none": false, "images": {images}}}')


def test_the_size_of_the_file(tmp_path: Path) -> None:
    text = json.dumps(LEAST)
    reading(tmp_path, text.ljust(2**16))
    with pytest.raises(CorruptFile) as refused:
        reading(tmp_path, text.ljust(2**16 + 1))
    assert str(refused.value).startswith(f"{tmp_path / DECIDER_CONFIG} is over the limit of 65536 ")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="is missing"):
        read_decider_config(tmp_path / DECIDER_CONFIG)
