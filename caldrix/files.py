"""Small files, read strictly: regular, bounded, UTF-8, and JSON as its standard has it.

A model directory is foreign input. A name in it can be a pipe that never ends, a link to a device,
or a file larger than the memory; its JSON can say one thing twice. Each layer names the type of
its own refusal.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from caldrix.errors import CaldrixError, Refusal, quoted

MAX_BYTES = 256 << 20
"""The default limit; real tokenizers reach 35 MB."""
_FETCH_AGAIN = "fetch the model again"


def read_text(path: Path, *, refusal: type[Refusal], limit: int = MAX_BYTES) -> str:
    """The text of a file.

    Raises ``refusal`` when it is missing, unreadable, no regular file (links are followed), over
    ``limit`` bytes, or not UTF-8.
    """
    raw = read_bytes(path, refusal=refusal, remedy=_FETCH_AGAIN, limit=limit)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise refusal(f"{path} is not valid UTF-8; {_FETCH_AGAIN}") from None


def read_bytes(path: Path, *, refusal: type[CaldrixError], remedy: str, limit: int) -> bytes:
    """The bytes of a file.

    Raises ``refusal`` when it is missing, unreadable, no regular file (links are followed), or over
    ``limit`` bytes; ``remedy`` says what to do then.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise refusal(f"{path} is not a regular file; {remedy}")
            raw = file.read(limit + 1)
    except FileNotFoundError:
        raise refusal(f"{path} is missing; {remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise refusal(f"{path} cannot be read: {reason}") from error
    if len(raw) > limit:
        raise refusal(f"{path} is over the limit of {limit} bytes; {remedy}")
    return raw


def _open_at_once(path: str, flags: int) -> int:
    """An opener: opening a pipe waits for its writer, unless asked not to."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_json_object(
    path: Path, *, refusal: type[Refusal], limit: int = MAX_BYTES
) -> dict[str, Any]:
    """The JSON object in a file, its keys in order.

    Raises ``refusal`` as `read_text` and `parse_json_object` do.
    """
    return parse_json_object(
        read_text(path, refusal=refusal, limit=limit), str(path), refusal=refusal
    )


def parse_json_object(text: str, where: str, *, refusal: type[Refusal]) -> dict[str, Any]:
    """Parse strict JSON whose top is an object; ``where`` names it in the refusal's sentence.

    Raises ``refusal`` for anything else: a key that stands twice, NaN or Infinity, or nesting too
    deep to read.
    """

    def fail(what: str) -> NoReturn:
        raise refusal(f"{where}: {what}; {_FETCH_AGAIN}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            fail(f"the key {quoted(twice)} is there twice in one object")
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
