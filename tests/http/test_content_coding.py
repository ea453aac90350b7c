"""Compressed bodies: what they decode to, what is refused, and that a bomb stays small."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.config import MEBIBYTE, ServerConfig
from caldrix.http.content_coding import (
    GZIP,
    MOST_PARTS,
    ZSTD,
    ContentCoding,
    Decompressor,
    content_coding,
)
from caldrix.http.errors import ApiError
from tests.support.readable import TOKENIZER, ReadableExecutor
from tests.support.serving import MODEL, says, serving, trio_test

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST = 4 * MEBIBYTE
COMPRESS: Mapping[ContentCoding, Callable[[bytes], bytes]] = {
    GZIP: gzip.compress,
    ZSTD: zstd.compress,
}
CODINGS = pytest.mark.parametrize("coding", COMPRESS, ids=lambda coding: coding.name)

TEXT = b'{"a": "' + bytes(range(32, 127)) * 20 + b'"}'
NOISE = random.Random(7).randbytes(3 * MEBIBYTE)
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
OVER = (413, "the request body is over 4 MiB")


def refused(coding: ContentCoding, body: bytes, most: int = MOST) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        coding.decode(body, most)
    return caught.value.status, caught.value.message


def decoded_or_status(coding: ContentCoding, body: bytes, most: int) -> bytes | int:
    try:
        return coding.decode(body, most)
    except ApiError as error:
        return error.status


def damaged(coding: ContentCoding) -> tuple[int, str]:
    return 400, f"the request body is damaged: its {coding.name} can't be decoded"


def cut(coding: ContentCoding) -> tuple[int, str]:
    return 400, f"the request body breaks off before its {coding.name} ends"


def unlike(coding: ContentCoding) -> tuple[int, str]:
    return 400, f"the request body is not {coding.name}, though its Content-Encoding says so"


def zstd_stream(data: bytes, window_log: int = 20) -> bytes:
    """A frame that does not tell the size of its content."""
    options: dict[int, int] = {zstd.CompressionParameter.window_log: window_log}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(data) + compressor.flush()


@given(st.sampled_from(list(COMPRESS)), st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_what_was_compressed_comes_back(coding: ContentCoding, parts: list[bytes]) -> None:
    body = b"".join(map(COMPRESS[coding], parts))
    whole = b"".join(parts)
    assert coding.decode(body, len(whole)) == whole
    if whole:
        assert refused(coding, body, len(whole) - 1)[0] == 413


@given(st.sampled_from(list(COMPRESS)), st.binary(max_size=40), st.integers(0, 6))
def test_any_bytes_are_a_body_or_a_refusal(coding: ContentCoding, rest: bytes, kept: int) -> None:
    body = COMPRESS[coding](b"")[:kept] + rest
    outcome = decoded_or_status(coding, body, 100)
    assert outcome in (400, 413) if isinstance(outcome, int) else len(outcome) <= 100


@given(st.integers(0, 1_000_000), st.integers(1, 255))
def test_a_changed_byte_of_gzip_does_not_go_unseen(place: int, change: int) -> None:
    body = bytearray(gzip.compress(TEXT, mtime=0))
    body[place % len(body)] ^= change
    # A few bytes of its header say nothing of the content.
    assert decoded_or_status(GZIP, bytes(body), MOST) in (TEXT, 400)


@CODINGS
def test_large_bodies(coding: ContentCoding) -> None:
    """Of many pieces, and of two parts that end within one."""
    compress = COMPRESS[coding]
    assert coding.decode(compress(NOISE), MOST) == NOISE
    assert coding.decode(compress(NOISE) + compress(TEXT), MOST) == NOISE + TEXT
    assert coding.decode(compress(bytes(MOST)), MOST) == bytes(MOST)


@CODINGS
def test_a_body_cut_anywhere_is_told(coding: ContentCoding) -> None:
    body = COMPRESS[coding](TEXT)
    begun = 2 if coding is GZIP else 4
    for length in range(len(body)):
        assert refused(coding, body[:length]) == (
            unlike(coding) if length < begun else cut(coding)
        ), length


@CODINGS
def test_what_is_no_part_of_a_body(coding: ContentCoding) -> None:
    body = COMPRESS[coding](TEXT)
    (other,) = COMPRESS.keys() - {coding}
    for wrong in (b"", b"{}", COMPRESS[other](TEXT), zlib.compress(TEXT), b"\0" + body):
        assert refused(coding, wrong) == unlike(coding)
    for tail in (b"x", b"\0" * 8, COMPRESS[other](TEXT)):
        assert refused(coding, body + tail) == (
            400,
            f"the request body goes on after its {coding.name} has ended",
        )
    assert refused(coding, body + body[:-1]) == cut(coding)


@CODINGS
def test_many_small_parts(coding: ContentCoding) -> None:
    part = COMPRESS[coding](b"ab")
    assert coding.decode(part * MOST_PARTS, MOST) == b"ab" * MOST_PARTS
    assert refused(coding, part * (MOST_PARTS + 1)) == (
        400,
        f"the request body has more than 256 {coding.name} {coding.parts}; compress it as one",
    )


ZSTD_HEAD = b"\x28\xb5\x2f\xfd"
LAST_RAW_BLOCK = b"\x11\0\0ab"  # of two bytes

ZSTD_BODIES: list[tuple[str, bytes, tuple[int, str]]] = [
    # A single segment that says it holds so much, in eight bytes
    ("2^40 claimed", ZSTD_HEAD + b"\xe0" + (2**40).to_bytes(8, "little") + LAST_RAW_BLOCK, OVER),
    ("5 MiB claimed", zstd.compress(bytes(5 * MEBIBYTE)), OVER),
    ("3 MiB twice", zstd.compress(bytes(3 * MEBIBYTE)) * 2, OVER),
    ("too little claimed", ZSTD_HEAD + b"\x20\x01" + LAST_RAW_BLOCK, damaged(ZSTD)),
    ("too much claimed", ZSTD_HEAD + b"\x20\x03" + LAST_RAW_BLOCK, damaged(ZSTD)),
    ("a reserved bit", ZSTD_HEAD + b"\x28\x02" + LAST_RAW_BLOCK, damaged(ZSTD)),
    (
        "a window of 16 MiB",
        zstd_stream(TEXT, window_log=24),
        (
            400,
            "the request body's zstd has a window of 16 MiB; compress it with one of 8 MiB at most",
        ),
    ),
    (
        "a window of 9 MiB",
        ZSTD_HEAD + b"\x00\x69" + LAST_RAW_BLOCK,
        (
            400,
            "the request body's zstd has a window of 9 MiB; compress it with one of 8 MiB at most",
        ),
    ),
    (
        "a dictionary",
        ZSTD_HEAD + b"\x01\x58\x07" + LAST_RAW_BLOCK,
        (400, "the request body's zstd needs a dictionary; compress it without one"),
    ),
    ("a skippable frame that is cut", SKIPPABLE[:-1], cut(ZSTD)),
]


@pytest.mark.parametrize(("body", "wanted"), [pytest.param(*b, id=n) for n, *b in ZSTD_BODIES])
def test_zstd_that_is_refused(body: bytes, wanted: tuple[int, str]) -> None:
    assert refused(ZSTD, body) == wanted


def test_zstd_of_any_kind() -> None:
    assert ZSTD.decode(ZSTD_HEAD + b"\x20\x02" + LAST_RAW_BLOCK, MOST) == b"ab"
    assert ZSTD.decode(zstd_stream(TEXT, window_log=23), MOST) == TEXT
    assert ZSTD.decode(SKIPPABLE + zstd.compress(TEXT) + SKIPPABLE, MOST) == TEXT
    assert ZSTD.decode(SKIPPABLE, MOST) == b""
    # As much as fits, whatever window a compressor of long texts would have.
    assert len(ZSTD.decode(zstd.compress(NOISE, level=19), MOST)) == len(NOISE)


def test_gzip_with_a_files_name() -> None:
    file = io.BytesIO()
    with gzip.GzipFile("body.json", "wb", fileobj=file) as writer:
        writer.write(TEXT)
    assert GZIP.decode(file.getvalue(), MOST) == TEXT


@define
class Counting:
    """A decompressor, and how much came out of it and all others of its kind."""

    inner: Decompressor
    counts: list[int] = field(eq=False)

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        out = self.inner.decompress(data, max_length)
        self.counts.append(len(out))
        return out


BOMBS = [
    (GZIP, gzip.compress(bytes(32 * MEBIBYTE))),
    (GZIP, gzip.compress(bytes(MEBIBYTE)) * 200),
    (ZSTD, zstd_stream(bytes(32 * MEBIBYTE))),
    (ZSTD, zstd_stream(bytes(MEBIBYTE)) * 200),
    # What says its size is not even begun.
    (ZSTD, zstd.compress(bytes(32 * MEBIBYTE))),
]


@pytest.mark.parametrize(("coding", "bomb"), BOMBS)
def test_a_bomb_is_left_where_it_is_too_large(coding: ContentCoding, bomb: bytes) -> None:
    assert len(bomb) < MEBIBYTE
    counts: list[int] = []
    counted = evolve(coding, decompressor=lambda: Counting(coding.decompressor(), counts))
    assert refused(counted, bomb) == OVER
    told = coding is ZSTD and zstd.get_frame_info(bomb).decompressed_size is not None
    assert sum(counts) == (0 if told else MOST + 1)


@pytest.mark.parametrize(
    ("headers", "coding"),
    [
        ([], None),
        ([""], None),
        (["identity"], None),
        (["gzip"], GZIP),
        ([" GZip "], GZIP),
        (["x-gzip"], GZIP),
        (["zstd"], ZSTD),
    ],
)
def test_the_codings_by_their_names(headers: Sequence[str], coding: ContentCoding | None) -> None:
    assert content_coding(headers) is coding


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (["br"], "br"),
        (["deflate"], "deflate"),
        (["gzip, zstd"], "gzip, zstd"),
        (["gzip", "gzip"], "gzip, gzip"),
        (["identity", "zstd"], "identity, zstd"),
        (["x" * 100], "x" * 60 + "…"),
    ],
)
def test_a_coding_that_is_not_taken(headers: Sequence[str], told: str) -> None:
    message = (
        f"Content-Encoding {told} is not taken; "
        "send plain JSON, or compress it once, with gzip or zstd"
    )
    with pytest.raises(ApiError, match=re.escape(message)) as caught:
        content_coding(headers)
    assert caught.value.status == 400


QUESTIONS = {"q": {"type": "noul", "instructions": "Late?"}}
ROUTES: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"model": MODEL, "prompt": "hi"}),
    ("/v1/systemone", {"model": MODEL, "state": "s", "questions": QUESTIONS}),
    ("/debug/replay/chatcmpl-1", {}),
]


def sent_as(*names: str) -> list[tuple[str, str]]:
    return [("content-type", "application/json"), *(("content-encoding", name) for name in names)]


@CODINGS
@trio_test
async def test_every_route_takes_compressed_bodies(coding: ContentCoding) -> None:
    async with serving(ReadableExecutor(), tokenizer=TOKENIZER, replay_ring=4) as server:
        for path, value in ROUTES:
            body = COMPRESS[coding](json.dumps(value).encode())
            response = await server.client.post(path, content=body, headers=sent_as(coding.name))
            assert response.status_code == 200, (path, response.text)


@CODINGS
@trio_test
async def test_the_limit_is_that_of_plain_bodies(coding: ContentCoding) -> None:
    path, value = ROUTES[1]
    plain = json.dumps(value).encode()
    config = ServerConfig(port=0, most_body=MEBIBYTE // 2)
    async with serving(says("ok"), config=config) as server:
        for size, status in ((config.most_body, 200), (config.most_body + 1, 413)):
            padded = plain + b" " * (size - len(plain))
            for body, names in ((padded, ()), (COMPRESS[coding](padded), (coding.name,))):
                response = await server.client.post(path, content=body, headers=sent_as(*names))
                assert response.status_code == status
        assert response.json()["error"]["message"] == "the request body is over 0.5 MiB"


UNREADABLE: list[tuple[bytes, tuple[str, ...], int, str]] = [
    (b"{}", ("br",), 400, "Content-Encoding br is not taken; "),
    (gzip.compress(b"{}"), ("gzip", "zstd"), 400, "Content-Encoding gzip, zstd is not taken; "),
    (b"{}", ("gzip",), 400, "the request body is not gzip, "),
    (gzip.compress(b"{}")[:-1], ("gzip",), 400, "the request body breaks off before its gzip ends"),
    (gzip.compress(b""), ("gzip",), 400, "the request body is empty; "),
    (zstd.compress(b"{"), ("zstd",), 400, "the request body is not JSON: "),
    (gzip.compress(bytes(MOST + 1)), ("gzip",), *OVER),
    (zstd.compress(bytes(MOST + 1)), ("zstd",), *OVER),
]


@trio_test
async def test_a_compressed_body_that_is_refused() -> None:
    async with serving(says("ok")) as server:
        for body, names, status, beginning in UNREADABLE:
            response = await server.client.post(
                "/v1/chat/completions", content=body, headers=sent_as(*names)
            )
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (status, None), names
            assert error["message"].startswith(beginning)
        path, value = ROUTES[0]
        assert (await server.client.post(path, json=value)).status_code == 200
