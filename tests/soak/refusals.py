"""Requests that no server should answer, and the refusals that the document has for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from tests.soak.questions import CHAT, TEXT

QUEUE_FULL = {
    "code": None,
    "message": "the request queue is full",
    "param": None,
    "type": "rate_limit_error",
}
_MOST_BODY = 4 * 2**20
_TOO_MANY_TOKENS = 40_000
"""More than the largest context that is served where none is asked for."""


@frozen
class BadRequest:
    """A request, and what it is refused with."""

    name: str
    status: int
    message: str
    """How the error's message begins."""
    param: str | None = None
    content: bytes = b""
    path: str = TEXT
    declared: int | None = None
    """The Content-Length, if it is not the content's."""

    def refused_by(self, status: int, body: bytes) -> bool:
        """Whether that is its refusal."""
        if status != self.status:
            return False
        error = json.loads(body)["error"]
        return bool(
            error["message"].startswith(self.message)
            and error == {**error, "code": None, "param": self.param}
            and set(error) == set(QUEUE_FULL)
            and error["type"] == "invalid_request_error"
        )


def bad_requests(model: str) -> Sequence[BadRequest]:
    """One of each kind, to the model ``model``."""

    def fields(**given: Any) -> bytes:
        base: Mapping[str, Any] = {"model": model}
        return json.dumps({**base, **given}).encode()

    huge = json.dumps({"model": model, "prompt": "x" * _MOST_BODY}).encode()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    picture = fields(messages=[{"role": "user", "content": [image]}])
    return (
        BadRequest("no body", 400, "the request body is empty"),
        BadRequest("half a body", 400, "the request body is not JSON", content=b'{"model": '),
        BadRequest("an array", 400, "the request body must be a JSON object", content=b"[1]"),
        BadRequest(
            "a key twice", 400, 'the key "model" comes twice', "model", b'{"model":1,"model":2}'
        ),
        BadRequest("nested", 400, "the request body is nested", content=b"[" * 100_000),
        BadRequest("not UTF-8", 400, "the request body is not UTF-8", content=b'{"model":"\xff"}'),
        BadRequest("a value", 400, "must be 0 < p <= 1", "top_p", fields(prompt="x", top_p=2)),
        BadRequest("a feature", 400, "n is not implemented", "n", fields(prompt="x", n=2)),
        BadRequest("a type", 400, "must be a string or an array", "prompt", fields(prompt={})),
        BadRequest("no prompt", 400, "is required", "prompt", fields()),
        BadRequest(
            "a model", 400, "this server serves", "model", b'{"model": "gpt-4", "prompt": "x"}'
        ),
        BadRequest(
            "a long prompt",
            400,
            f"the prompt is {_TOO_MANY_TOKENS} tokens, and the context of ",
            "prompt",
            fields(prompt=[0] * _TOO_MANY_TOKENS),
        ),
        BadRequest(
            "an image", 400, "this model takes text only", "messages[0].content[0]", picture, CHAT
        ),
        BadRequest("too large", 413, "the request body is over 4 MiB", content=huge),
        BadRequest(
            "too large, declared", 413, "the request body is over 4 MiB", declared=_MOST_BODY + 1
        ),
    )
