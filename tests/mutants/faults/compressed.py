"""Compressed bodies taken wrongly."""

from __future__ import annotations

from tests.mutants.faults.registry import breaks
from tests.mutants.toy import codings
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Toy
from tests.mutants.toy.wire import Handler


class _Plain(Handler):
    def decoded(self, raw: bytes) -> bytes:
        if "Content-Encoding" in self.headers:
            raise Refused(415, "send it plain")
        return raw


@breaks("wire.request.gzip", "wire.request.zstd")
class TakesPlainBodiesAlone(Toy):
    handler = _Plain


class _Unminding(Handler):
    def decoded(self, raw: bytes) -> bytes:
        return raw


@breaks("wire.request.gzip", "wire.request.zstd", "wire.request.other-coding")
class ReadsBodiesAsTheyCome(Toy):
    handler = _Unminding


class _Trusting(Handler):
    def decoded(self, raw: bytes) -> bytes:
        if self.headers["Content-Encoding"] != "gzip":
            return super().decoded(raw)
        decompressor = codings.DECOMPRESSORS["gzip"]()
        return self.fitting(decompressor.decompress(raw, self.toy.most_bytes + 1))


@breaks("wire.request.compressed-cut")
class MissesNoEnd(Toy):
    handler = _Trusting


class _Unmeasured(Handler):
    def decoded(self, raw: bytes) -> bytes:
        coding = self.headers["Content-Encoding"]
        return raw if coding is None else codings.decode(coding, raw, 2 * self.toy.most_bytes)


@breaks("wire.request.compressed-size")
class MeasuresWhatWasSent(Toy):
    handler = _Unmeasured
