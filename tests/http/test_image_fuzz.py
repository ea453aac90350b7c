"""Damaged images, base64 and URLs by the hundred: each is taken or refused by name, and no more."""

from __future__ import annotations

import os
import random
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from PIL import Image
from structlog.testing import capture_logs

from tests.soak.memory import resident
from tests.support.eyes import TOKENIZER, Eyes, LookingExecutor, grey, picture, user
from tests.support.image_files import exif, saved
from tests.support.serving import MODEL, Running, serving, trio_test
from tests.support.tiny_vision_model import TEMPLATE

CASES = 200
"""Of each kind of file, and of URLs."""
MOST_GROWTH = 64 * 2**20
"""Bytes that memory may grow by after the first half of them: one picture of the largest may be."""

_RNG = np.random.default_rng(5)
_NOISE = Image.fromarray(_RNG.integers(0, 256, (30, 45, 4), np.uint8))
_FRAMES = [Image.fromarray(_RNG.integers(0, 256, (20, 20, 3), np.uint8)) for _ in range(3)]

FILES: Mapping[str, tuple[str, list[bytes]]] = {
    "png": (
        "image/png",
        [
            saved(_NOISE, "PNG", exif=exif(6)),
            saved(_NOISE.convert("RGB").quantize(40), "PNG", transparency=3),
            saved(Image.fromarray(_RNG.integers(0, 2**16, (9, 9), np.uint16)), "PNG"),
            saved(_NOISE.convert("1"), "PNG", dpi=(72, 72)),
        ],
    ),
    "jpeg": (
        "image/jpeg",
        [
            saved(_NOISE.convert("RGB"), "JPEG", exif=exif(8, ">")),
            saved(_NOISE.convert("RGB"), "JPEG", progressive=True, subsampling=0),
            saved(_NOISE.convert("CMYK"), "JPEG"),
            saved(_NOISE.convert("L"), "JPEG", restart_marker_blocks=1),
        ],
    ),
    "webp": (
        "image/webp",
        [
            saved(_NOISE, "WEBP", exif=exif(3)),
            saved(_NOISE, "WEBP", lossless=True),
            saved(_NOISE.convert("RGB"), "WEBP"),
            saved(_FRAMES[0], "WEBP", save_all=True, append_images=_FRAMES[1:]),
        ],
    ),
}


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(len(changed))] = chance.choice((0, 255, chance.randrange(256)))
    return bytes(changed)


def early(data: bytes, chance: random.Random) -> bytes:
    """Flipped where headers are."""
    return flipped(data[:60], chance) + data[60:]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def doubled(data: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.choices(range(len(data)), k=2))
    return data[:end] + data[start:]


def without(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(12, len(data))
    return data[:start] + data[start + chance.randrange(40) :]


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flipped,
    early,
    cut,
    doubled,
    without,
)


def checksums_mended(data: bytes) -> bytes:
    """A PNG whose chunks have right checksums, so that what is wrong in them is looked at."""
    mended, position = [data[:8]], 8
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        body = data[position + 4 : position + 8 + length]
        mended += [data[position : position + 4], body, struct.pack(">I", zlib.crc32(body))]
        position += 12 + length
    return b"".join((*mended, data[position:]))


def damaged_url(kind: str, chance: random.Random) -> str:
    media_type, files = FILES[kind]
    data = chance.choice(MUTATIONS)(chance.choice(files), chance)
    if kind == "png" and chance.random() < 0.8:
        data = checksums_mended(data)
    return f"data:{media_type};base64,{b64encode(data).decode()}"


_PIECES = (
    "data:",
    ",",
    ";",
    "base64",
    "=",
    " ",
    "\n",
    "%2B",
    "-",
    "_",
    "é",
    "\0",
    "image/gif",
    "A",
)


def odd_url(chance: random.Random) -> str:
    """A right one with something put in or taken out, mostly near its beginning."""
    media_type, files = FILES[chance.choice(list(FILES))]
    url = f"data:{media_type};base64,{b64encode(files[0]).decode()}"
    if chance.random() < 0.1:
        return url.replace(media_type, media_type.upper())
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(chance.choice((30, len(url))))
        url = url[:at] + chance.choice(("", *_PIECES)) + url[at + chance.randrange(3) :]
    return url


async def status_of(server: Running, url: str) -> int:
    """What the answer's status is, which is right or names the image."""
    body = {"model": MODEL, "messages": [user(picture(url, detail="auto"))]}
    answer = await server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400), (url, answer.text)
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == (
            "messages[0].content[0]",
            "invalid_request_error",
        )
        assert error["message"]
    return answer.status_code


@pytest.mark.parametrize("kind", [*FILES, "urls"])
@trio_test
async def test_no_damage_fails_the_server(kind: str) -> None:
    chance = random.Random(kind)
    eyes = Eyes()
    seen: list[int] = []
    with capture_logs() as logs:
        async with serving(
            LookingExecutor(),
            tokenizer=TOKENIZER,
            template=TEMPLATE,
            context=16_384,
            images=eyes.reader(),
        ) as server:
            half = 0
            for number in range(CASES):
                if number == CASES // 2:
                    half = resident(os.getpid())
                url = odd_url(chance) if kind == "urls" else damaged_url(kind, chance)
                seen.append(await status_of(server, url))
            assert resident(os.getpid()) - half < MOST_GROWTH
            assert await status_of(server, grey(128)) == 200
    assert [entry for entry in logs if entry["log_level"] == "error"] == []
    # Some damage does no harm, some is found in the header, and some by the decoder.
    assert {200, 400} <= set(seen)
    if kind != "urls":
        assert seen.count(200) < eyes.decoded - 1 < CASES
