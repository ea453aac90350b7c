"""The members that answers must have: what an OpenAI client reads of them.

A shape is a type, a tuple of types of which one fits, an object's members, or an array's item.
Members beyond it are no fault here; the goldens of kind shape hold the exact sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

Shape = type | tuple[type, ...] | dict[str, Any] | list[Any]

_USAGE: Shape = {"completion_tokens": int, "prompt_tokens": int, "total_tokens": int}
_FRAME: dict[str, Shape] = {"created": int, "id": str, "model": str, "object": str}
_ENDED: dict[str, Shape] = {"finish_reason": str, "index": int}
_GOING_ON: dict[str, Shape] = {"finish_reason": (str, NoneType), "index": int}

CHAT_ANSWER: Shape = {
    **_FRAME,
    "choices": [{**_ENDED, "message": {"content": str, "role": str}}],
    "usage": _USAGE,
}
CHAT_CHUNK: Shape = {**_FRAME, "choices": [{**_GOING_ON, "delta": {}}]}
TEXT_ANSWER: Shape = {**_FRAME, "choices": [{**_ENDED, "text": str}], "usage": _USAGE}
TEXT_CHUNK: Shape = {**_FRAME, "choices": [{**_GOING_ON, "text": str}]}
MODEL_LIST: Shape = {"data": [{"id": str, "object": str, "owned_by": str}], "object": str}


def expect_shape(value: Any, shape: Shape, path: str = "the body") -> None:
    """Check that ``value`` has every member of ``shape``; AssertionError names what it lacks."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), f"{path} is no object: {value!r}"
        for name, member in shape.items():
            assert name in value, f"{path} has no {name}: {sorted(value)}"
            expect_shape(value[name], member, f"{path}'s {name}")
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{path} is no array: {value!r}"
        for item in value:
            expect_shape(item, shape[0], f"an item of {path}")
    else:
        types: Sequence[type] = shape if isinstance(shape, tuple) else (shape,)
        # By exact type: JSON's true is no integer.
        assert type(value) in types, f"{path} is {value!r}"
