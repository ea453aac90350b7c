"""The size of bodies that a vision server takes."""

from __future__ import annotations

import json

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, SYSTEMONE
from caldrix_conformance.marks import checks, needs
from caldrix_conformance.target import Target

MIB = 1024 * 1024
MOST_BYTES = 32 * MIB


def padded(value: dict[str, object], size: int) -> bytes:
    """``value`` as JSON of ``size`` bytes, by means of a member that is ignored."""
    body = json.dumps(value | {"user": ""}, separators=(",", ":")).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


def send(target: Target, path: str, body: bytes) -> Answer:
    return target.send("POST", path, content=body, headers={"Content-Type": "application/json"})


@checks("image-bodies.most")
def test_largest_body(target: Target) -> None:
    body = padded(target.body(CHAT, {}), MOST_BYTES)
    send(target, CHAT.path, body).completion(CHAT)


@checks("image-bodies.over")
def test_body_too_large(target: Target) -> None:
    body = padded(target.body(CHAT, {}), MOST_BYTES + 1)
    answer = send(target, CHAT.path, body)
    assert answer.expect(413).error, f"no error object; {answer.seen}"


@checks("image-bodies.routes")
def test_body_of_a_completion(target: Target) -> None:
    body = padded(target.body(COMPLETIONS, {}), 5 * MIB)
    send(target, COMPLETIONS.path, body).completion(COMPLETIONS)


@checks("image-bodies.routes")
@needs(Capability.SYSTEMONE)
def test_body_of_decisions(target: Target) -> None:
    """The padding is an unknown field here, and refused as such."""
    body = padded({"model": target.model, "state": "s", "questions": {}}, 5 * MIB)
    answer = send(target, SYSTEMONE, body)
    assert answer.status == 400, f"wanted the 400 of an unknown field; {answer.seen}"
