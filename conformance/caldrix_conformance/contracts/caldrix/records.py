"""The records of the most recent requests, which GET /debug/requests gives, as cases look at them.

The contract's document leaves their form open; this project's own choice is
``{"requests": [{"id": …, …}, …]}``, the newest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

import pytest

from caldrix_conformance.answers import Answer, Completion, Streamed
from caldrix_conformance.shapes import Shape
from caldrix_conformance.target import Target
from caldrix_conformance.waiting import eventually

Record = dict[str, Any]

PATH = "/debug/requests"
MOST_KEPT = 256

_COUNT = (int, NoneType)
_NUMBER = (int, float)
_TIME = (int, float, NoneType)
_TEXT = (str, NoneType)

SAMPLING: Shape = {
    "temperature": _NUMBER,
    "top_k": int,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "seed": _COUNT,
}
RECORD: Shape = {
    "id": _TEXT,
    "route": str,
    "received": _NUMBER,
    "queue_ms": _TIME,
    "prefill_ms": _TIME,
    "decode_ms": _TIME,
    "prompt_tokens": _COUNT,
    "completion_tokens": _COUNT,
    "cached_tokens": _COUNT,
    "finish_reason": _TEXT,
    "status": int,
    "sampling": SAMPLING,
    "speculative": (dict, NoneType),
    "lane": _TEXT,
}
"""What the record of an answered request holds."""


def records_in(answer: Answer) -> list[Any]:
    """What an answer of GET /debug/requests lists."""
    listed = answer.expect(200).object.get("requests")
    assert isinstance(listed, list), f"no array under requests; {answer.seen}"
    return listed


def records(target: Target) -> Sequence[Record]:
    """The records that there are now, the newest first.

    Their form is this project's choice, so a target of another form isn't judged by what they hold.
    """
    answer = target.get(PATH)
    if answer.status == 200 and not _is_of_our_form(answer):
        pytest.skip("its records have another form than ours, so nobody knows where to look")
    return [record for record in records_in(answer) if isinstance(record, dict)]


def _is_of_our_form(answer: Answer) -> bool:
    try:
        told = json.loads(answer.body)
    except ValueError:
        # Then it is no form at all, which is for a clause to say.
        return True
    return isinstance(told, dict) and isinstance(told.get("requests"), list)


def record_of(target: Target, answered: Completion | Streamed) -> Record:
    """The record of a request that was answered, found by the answer's id."""
    answer_id = _id_of(answered)
    record = _await(target, answer_id)
    assert record is not None, f"{PATH} has no record of the id {answer_id!r}"
    return record


def records_of(
    target: Target, route: str, ask: Callable[[], Answer]
) -> tuple[Answer, Sequence[Record]]:
    """What ``ask`` was answered, and the records of that route that came with it, one at least."""
    before = {_mark(record) for record in records(target)}
    answer = ask()
    found: list[Record] = []

    def look() -> bool:
        listed = [record for record in records(target) if record.get("route") == route]
        found[:] = [record for record in listed if _mark(record) not in before]
        return bool(found)

    assert eventually(look), f"{PATH} has no new record of {route}"
    return answer, found


def _mark(record: Record) -> str:
    """What tells records apart: refused requests have no id."""
    return f"{record.get('id')} {record.get('received')}"


def let_it_be_recorded(target: Target, answered: Completion | Streamed) -> None:
    """Wait for the record of an answer, in whatever form and also if it never comes."""
    answer_id = str(_id_of(answered)).encode()
    eventually(lambda: answer_id in target.get(PATH).body)


def _id_of(answered: Completion | Streamed) -> object:
    return (answered.body if isinstance(answered, Completion) else answered.chunks[0]).get("id")


def _await(target: Target, answer_id: object) -> Record | None:
    found: list[Record] = []

    def look() -> bool:
        found[:] = [record for record in records(target) if record.get("id") == answer_id]
        return bool(found)

    return found[0] if eventually(look) else None


def settings_of(record: Record) -> Mapping[str, Any]:
    """The sampling settings in a record."""
    settings = record.get("sampling")
    assert isinstance(settings, dict), f"a record's sampling is {settings!r}"
    return settings


def texts_in(value: Any) -> list[str]:
    """Every string in a JSON value, the names of members included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts_in(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item)]
    return []
