"""Answers as bytes: the order of members, spaces, the media type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from caldrix_conformance.endpoints import ENDPOINTS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import both_endpoints
from caldrix_conformance.target import Target


@pytest.fixture(scope="session")
def texts(target: Target) -> list[str]:
    """JSON texts as they came: of each endpoint an answer, an error and chunks; the models."""
    texts = [target.get("/v1/models").body]
    for endpoint in ENDPOINTS:
        if endpoint.capability not in target.capabilities:
            continue
        fields = {**endpoint.prompt("One, two, three,"), "max_tokens": 3}
        stream = target.stream(endpoint, **fields, stream_options={"include_usage": True})
        texts += (target.ask(endpoint, **more).body for more in (fields, {"top_p": 2}))
        texts += (e.data.encode() for e in stream.events if e.data != "[DONE]")
    return [text.decode("utf-8", "replace") for text in texts]


def parsed(text: str, **options: Any) -> Any:
    """The value of a JSON text, AssertionError where it is none."""
    try:
        return json.loads(text, **options)
    except ValueError:
        raise AssertionError(f"not JSON: {text!r}") from None


def unsorted_objects(text: str) -> Iterator[list[str]]:
    """The keys of each object in ``text`` whose keys are not in alphabetical order."""
    found: list[list[str]] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if keys != sorted(keys):
            found.append(keys)

    parsed(text, object_pairs_hook=look)
    yield from found


@checks("wire.keys.sorted")
def test_sorted(texts: list[str]) -> None:
    found = [keys for text in texts for keys in unsorted_objects(text)]
    assert not found, f"the members come in the order {found[0]}"


@checks("wire.keys.once")
def test_once(texts: list[str]) -> None:
    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        assert len(set(keys)) == len(keys), f"a member comes twice: {keys}"

    for text in texts:
        parsed(text, object_pairs_hook=look)


@checks("wire.compact")
def test_compact(texts: list[str]) -> None:
    for text in texts:
        value = parsed(text)
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        spare = len(text) - len(compact)
        # Escapes of a server's own choice make a text longer too, and are not judged here.
        escaped = json.dumps(value, separators=(",", ":"))
        assert spare <= len(escaped) - len(compact), f"{spare} spare characters: {text!r}"


@checks("wire.ids.numbered")
def test_numbered_ids(target: Target) -> None:
    able = [one for one in ENDPOINTS if one.capability in target.capabilities]
    ids = [str(target.complete(endpoint).body.get("id")) for endpoint in able * 2]
    numbers = [answer_id.rpartition("-")[2] for answer_id in ids]
    assert all(re.fullmatch("[0-9]+", number) for number in numbers), f"the ids are {ids}"
    rising = sorted({int(number) for number in numbers})
    assert [int(number) for number in numbers] == rising, f"the ids are {ids}, one after the other"


@checks("wire.media-type")
@both_endpoints
def test_media_type(target: Target, endpoint: Endpoint) -> None:
    seen = target.ask(endpoint).expect(200).media_type
    assert seen == "application/json", f"the media type is {seen!r}"


@checks("wire.utf8")
@both_endpoints
def test_utf8(target: Target, endpoint: Endpoint) -> None:
    prompt = endpoint.prompt("Repeat exactly, nothing else: 🙂🙃😀 naïve 日本語 🙂🙃😀")
    body = target.ask(endpoint, **prompt, max_tokens=12).expect(200).body
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"an answer is not UTF-8 at byte {error.start}: {body!r}") from None
    assert not text.startswith("\ufeff"), "an answer begins with a byte order mark"
