"""Compressed bodies as a toy reads them: of one part, in either coding."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from tests.mutants.toy.rules import Refused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


DECOMPRESSORS: Mapping[str, Callable[[], Decompressor]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "zstd": zstd.ZstdDecompressor,
}


def decode(coding: str, raw: bytes, most: int) -> bytes:
    """What ``raw`` decodes to; a byte more than ``most`` where it is too much."""
    if coding not in DECOMPRESSORS:
        raise Refused(415, "an unknown coding")
    decompressor = DECOMPRESSORS[coding]()
    try:
        data = decompressor.decompress(raw, most + 1)
    except (zlib.error, zstd.ZstdError) as error:
        raise Refused(400, "damaged") from error
    if len(data) <= most and not decompressor.eof:
        raise Refused(400, "cut")
    return data
