"""Bodies that are read too loosely or too strictly, sizes, and routes that should not be there."""

from __future__ import annotations

from typing import Any

from attrs import define

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import MODEL, Json, Toy
from tests.mutants.toy.wire import Handler

ORDINARY: Json = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}


@breaks("errors.body.media-type")
class ReadsLoosely(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return super().read("application/json", raw)


@breaks("errors.body.duplicate")
class TakesTwins(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return super().read(content_type, raw.replace(b', "user": "x", "max_tokens": 2', b""))


@breaks("errors.body.nested")
class BreaksOnNesting(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        if b"[[[[" in raw:
            raise ConnectionError("as if a stack had overflowed")
        return super().read(content_type, raw)


@breaks(
    *(f"errors.body.{what}" for what in ("json", "empty", "object", "utf8", "surrogate")),
    *(f"errors.body.{what}" for what in ("constants", "duplicate", "nested", "media-type")),
    *("errors.object", "errors.object.exact", "errors.type", "errors.code.null"),
    *("errors.media-type", "errors.param.none"),
)
class ReadsNoBodies(Toy):
    """Whatever can't be read is an ordinary request."""

    def read(self, content_type: str, raw: bytes) -> Json:
        try:
            return super().read(content_type, raw)
        except Refused:
            return ORDINARY


@breaks("errors.body.json-types")
class KnowsOneSpellingOfJson(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        if content_type != "application/json":
            raise Refused(400, "send JSON")
        return super().read(content_type, raw)


@breaks("errors.body.spelling", "errors.body.surrogate")
class ReadsNoEscapes(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return super().read(content_type, raw.replace(b"\\u", b"\\\\u"))


class _HtmlErrors(Handler):
    def headers_of(self, status: int, media_type: str) -> dict[str, str]:
        return super().headers_of(status, media_type if status == 200 else "text/html")


@breaks("errors.media-type")
class SaysThatErrorsAreHtml(Toy):
    handler = _HtmlErrors


class _ClosingAfterErrors(Handler):
    def headers_of(self, status: int, media_type: str) -> dict[str, str]:
        # Not on a client that keeps its connections: it would trip over that anywhere.
        if status != 200 and "User-Agent" not in self.headers:
            self.close_connection = True
        return super().headers_of(status, media_type)


@breaks("errors.after.answers")
class ClosesAfterErrors(Toy):
    handler = _ClosingAfterErrors


@breaks("errors.size.most")
@define
class TakesLess(Toy):
    most_bytes: int = 4 * 1024 * 1024 - 1


@breaks("errors.size.over", "errors.size.chunked")
@define
class TakesMore(Toy):
    most_bytes: int = 8 * 1024 * 1024


class _Measuring(Handler):
    def do_POST(self) -> None:  # noqa: N802  # the library asks for this name
        if "Content-Length" not in self.headers:
            self.toy.most_bytes *= 2
        super().do_POST()
        self.toy.most_bytes = 4 * 1024 * 1024


@breaks("errors.size.chunked")
class BelievesTheLength(Toy):
    handler = _Measuring


class _Sulking(Handler):
    sulks = False

    def refuse(self, refused: Refused) -> None:
        super().refuse(refused)
        type(self).sulks = refused.status == 413

    def read(self, raw: bytes) -> dict[str, Any]:
        if self.sulks and len(raw) < 1000:
            raise Refused(503, "too much for me")
        return super().read(raw)


@breaks("errors.size.after")
class SulksAfterALargeBody(Toy):
    handler = _Sulking


@breaks("errors.route.method")
class DoesNotKnowTheMethod(Toy):
    def status(self, refused: Refused) -> int:
        return 404 if refused.status == 405 else refused.status


@breaks("errors.route.exact")
class FindsRoutesLoosely(Toy):
    def get(self, path: str) -> Json | str:
        return super().get(path.lower().rstrip("/") or "/")


@breaks("errors.route.anthropic")
class SpeaksAnthropic(Toy):
    def post(self, path: str, body: Json) -> Any:
        return {"type": "message"} if path == "/v1/messages" else super().post(path, body)


@breaks("errors.object")
class LeavesOutTheCode(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        if refused.param is None:
            del body["error"]["code"]
        return body


@breaks("wire.keys.once", "wire.compact")
class SaysItTwice(Toy):
    def encode(self, value: Any) -> str:
        text = super().encode(value)
        return text.replace('"model":', '"model":"x","model":')


@breaks("wire.utf8", "wire.compact", "wire.keys.once", "wire.keys.sorted")
class BeginsWithAMark(Toy):
    def encode(self, value: Any) -> str:
        text = super().encode(value)
        return f"\ufeff{text}" if isinstance(value, dict) and "usage" in value else text


@breaks("wire.compact")
class BreaksLines(Toy):
    def encode(self, value: Any) -> str:
        text = super().encode(value)
        return f"{text}\n" if "data" in value else text
