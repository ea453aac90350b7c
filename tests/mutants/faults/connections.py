"""HTTP spoken wrongly: connections, lengths, versions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.server import Toy
from tests.mutants.toy.wire import Handler, Left


class _Closing(Handler):
    """Without a word, which a client that keeps connections for later would trip over anywhere."""

    def end_headers(self) -> None:
        super().end_headers()
        # A head that could not be read has no headers.
        if "User-Agent" not in getattr(self, "headers", ()):
            self.close_connection = True


@breaks("wire.connection.kept", "wire.connection.pipelined", "wire.connection.after-stream")
class ClosesEachConnection(Toy):
    handler = _Closing


class _Keeping(Handler):
    def end_headers(self) -> None:
        super().end_headers()
        if self.command == "GET":
            self.close_connection = False


@breaks("wire.connection.close", "wire.http10.answer")
class KeepsConnections(Toy):
    handler = _Keeping
    waited_for = 2.0


class _Chunking(Handler):
    def stream(self, events: Iterator[str]) -> None:
        self.request_version = "HTTP/1.1"
        super().stream(events)


@breaks("wire.http10.stream")
class AlwaysChunks(Toy):
    handler = _Chunking


class _Endless(Handler):
    def stream(self, events: Iterator[str]) -> None:
        self.request_version = "HTTP/1.0"
        super().stream(events)
        self.close_connection = True

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Connection":
            super().send_header(keyword, value)


@breaks("wire.connection.after-stream")
class EndsStreamsUnannounced(Toy):
    handler = _Endless


class _Lengthy(Handler):
    def chunks(self) -> Iterator[bytes]:
        yield b""


@breaks("wire.request.chunked")
class KnowsNoChunks(Toy):
    handler = _Lengthy


class _Hasty(Handler):
    def exactly(self, size: int) -> bytes:
        # What one look at the socket gives.
        return self.rfile.read1(size)


@breaks("wire.request.pieces", "wire.request.cut")
class ReadsOnce(Toy):
    handler = _Hasty


class _Unexpecting(Handler):
    def handle_expect_100(self) -> bool:
        self.send_error(417)
        return False


@breaks("wire.request.expect")
class ExpectsNothing(Toy):
    handler = _Unexpecting


class _Loose(Handler):
    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.command = (self.command or "").upper()
        return parsed

    def do_get(self) -> None:
        self.do_GET()


@breaks("wire.request.method-case")
class ReadsMethodsLoosely(Toy):
    handler = _Loose


class _Literal(Handler):
    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed:
            self.path = self.requestline.split()[1]
        return parsed


@breaks("wire.request.query", "wire.request.absolute")
class TakesTargetsLiterally(Toy):
    handler = _Literal


class _Talkative(Handler):
    def do_HEAD(self) -> None:  # noqa: N802  # the library asks for this name
        self.command = "GET"
        self.do_GET()


@breaks("wire.request.head")
class AnswersHeadInFull(Toy):
    handler = _Talkative


class _Silent(Handler):
    def do_OPTIONS(self) -> None:  # noqa: N802  # the library asks for this name
        self.send_error(501)


@breaks("wire.request.options")
class HasNoOptions(Toy):
    handler = _Silent


class _FirstLength(Handler):
    def body(self) -> bytes:
        lengths = self.headers.get_all("Content-Length", [])
        del self.headers["Content-Length"]
        if "Transfer-Encoding" not in self.headers:
            self.headers["Content-Length"] = lengths[0]
        return super().body()


class _Greedy(Handler):
    def exactly(self, size: int) -> bytes:
        if "Transfer-Encoding" in self.headers or not size:
            return super().exactly(size)
        # All that came together with the body, and the rest of the body.
        raw = self.rfile.read1(65536)
        return raw + super().exactly(max(size - len(raw), 0))


@breaks("wire.request.longer", "wire.connection.pipelined")
class ReadsBeyondTheLength(Toy):
    handler = _Greedy
    waited_for = 2.0


@breaks("wire.request.lengths", "wire.request.two-codings")
class TakesTheFirstLength(Toy):
    handler = _FirstLength


class _Hostless(Handler):
    def parse_request(self) -> bool:
        parsed = super(Handler, self).parse_request()
        if parsed and not self.headers["Host"]:
            self.headers["Host"] = "localhost"
        self.path = urlsplit(self.path).path if parsed else ""
        return parsed and not self.headers.defects


@breaks("wire.request.no-host")
class NeedsNoHost(Toy):
    handler = _Hostless


class _Dying(Handler):
    dead = False

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        # A line without an end is a client that left.
        if not parsed and self.raw_requestline.endswith(b"\n"):
            type(self).dead = True
        return parsed

    def do_GET(self) -> None:  # noqa: N802  # the library asks for this name
        if self.dead:
            type(self).dead = False
            raise Left
        super().do_GET()


@breaks("wire.request.garbage", "wire.request.large-head", "wire.request.no-host")
class DiesOfGarbage(Toy):
    """One request that can't be read takes the next with it."""

    handler = _Dying


class _Upgrading(Handler):
    upgraded = False

    def do_GET(self) -> None:  # noqa: N802  # the library asks for this name
        if self.upgraded:
            type(self).upgraded = False
            raise Left
        type(self).upgraded = "Upgrade" in self.headers
        super().do_GET()


@breaks("wire.request.websocket")
class DiesOfAnUpgrade(Toy):
    handler = _Upgrading


class _PlainText(Handler):
    def headers_of(self, status: int, media_type: str) -> dict[str, str]:
        return super().headers_of(status, "text/plain")


@breaks("wire.media-type")
class AnswersPlainText(Toy):
    handler = _PlainText


class _Unhearing(Handler):
    def do_GET(self) -> None:  # noqa: N802  # the library asks for this name
        self.connection.settimeout(0.05)
        try:
            ended = self.connection.recv(1, socket.MSG_PEEK) == b""
        except TimeoutError:
            ended = False
        self.connection.settimeout(None)
        if ended and self.headers.get("Connection") is None:
            self.close_connection = True
            return
        super().do_GET()


@breaks("wire.connection.half-closed")
class LeavesWithTheClientsEnd(Toy):
    handler = _Unhearing
