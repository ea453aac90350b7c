"""A toy's way over the wire: HTTP/1.1 as a careful server speaks it, in parts to be replaced."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.mutants.toy import codings
from tests.mutants.toy.rules import Refused

if TYPE_CHECKING:
    from tests.mutants.toy.server import Toy

PIECE = 11
"""Bytes of a stream's chunks: an odd number, so that they end in the middle of everything."""


class Left(Exception):
    """The client left before it had sent its request."""


class Handler(BaseHTTPRequestHandler):
    """One client's connection to ``toy``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    toy: Toy
    raw_requestline: bytes

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.headers.defects or (
            self.request_version == "HTTP/1.1" and not self.headers["Host"]
        ):
            self.send_error(400)
            return False
        self.path = urlsplit(self.path).path
        return True

    def do_GET(self) -> None:
        try:
            self.toy.check_headers(self.headers)
            answer = self.toy.get(self.path)
        except Refused as refused:
            return self.refuse(refused)
        if isinstance(answer, str):
            return self.answer(200, answer, self.toy.media_type(self.path))
        return self.answer(200, self.toy.encode(answer))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_OPTIONS(self) -> None:
        self.answer(200, "", "text/plain", {"Allow": self.toy.allowed(self.path)})

    def do_PUT(self) -> None:
        try:
            self.body()
            raise Refused(405 if self.toy.allowed(self.path) else 404, "not that way")
        except Refused as refused:
            self.refuse(refused)

    def do_DELETE(self) -> None:
        self.do_PUT()

    def do_POST(self) -> None:
        try:
            raw = self.body()
            self.toy.check_headers(self.headers)
            answer = self.toy.post(self.path, self.read(self.decoded(self.fitting(raw))))
            if not isinstance(answer, dict | str):
                # The first event before the status: a refusal is no event.
                answer = itertools.chain([next(answer)], answer)
        except Refused as refused:
            return self.refuse(refused)
        except Left:
            self.close_connection = True
            return None
        if isinstance(answer, dict):
            answer = self.toy.encode(answer)
        if isinstance(answer, str):
            return self.answer(200, answer, self.toy.answer_media_type)
        return self.stream(answer)

    def fitting(self, raw: bytes) -> bytes:
        if len(raw) > self.toy.most_bytes:
            raise Refused(413, "too large")
        return raw

    def decoded(self, raw: bytes) -> bytes:
        coding = self.headers["Content-Encoding"]
        if coding is None:
            return raw
        return self.fitting(codings.decode(coding, raw, self.toy.most_bytes))

    def read(self, raw: bytes) -> dict[str, Any]:
        if self.toy.allowed(self.path).startswith("GET"):
            raise Refused(405, "only to be read")
        return self.toy.read(self.headers.get("Content-Type", ""), raw)

    def body(self) -> bytes:
        lengths = self.headers.get_all("Content-Length", [])
        chunked = "Transfer-Encoding" in self.headers
        if len(lengths) + chunked > 1 or any(not length.isdecimal() for length in lengths):
            self.close_connection = True
            raise Refused(400, "where does the body end?")
        if chunked:
            return b"".join(self.chunks())
        return self.exactly(int(lengths[0]) if lengths else 0)

    def exactly(self, size: int) -> bytes:
        raw = self.rfile.read(size)
        if len(raw) < size:
            raise Left
        return raw

    def chunks(self) -> Iterator[bytes]:
        while size := self.size_of_chunk():
            yield self.exactly(size)
            self.rfile.readline()
        self.rfile.readline()

    def size_of_chunk(self) -> int:
        line = self.rfile.readline()
        try:
            return int(line, 16)
        except ValueError:
            self.close_connection = True
            raise Refused(400, "no chunk") from None

    def refuse(self, refused: Refused) -> None:
        headers = {"Allow": self.toy.allowed(self.path)} if refused.status == 405 else {}
        text = self.toy.encode(self.toy.error(refused))
        self.answer(self.toy.status(refused), text, headers=headers)

    def answer(
        self,
        status: int,
        text: str,
        media_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        data = text.encode(errors="surrogateescape")
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in {**self.headers_of(status, media_type), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def headers_of(self, status: int, media_type: str) -> dict[str, str]:
        """The headers of a whole answer, but for its length."""
        return {"Content-Type": media_type}

    def stream(self, events: Iterator[str]) -> None:
        chunked = self.request_version == "HTTP/1.1"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(
            *(("Transfer-Encoding", "chunked") if chunked else ("Connection", "close"))
        )
        self.end_headers()
        try:
            for event in events:
                data = self.toy.event_bytes(event)
                self.wfile.write(in_chunks(data) if chunked else data)
            self.wfile.write(b"0\r\n\r\n" if chunked else b"")
        except ConnectionError:
            self.close_connection = True


def in_chunks(data: bytes) -> bytes:
    """``data`` in the chunked transfer coding, in several chunks."""
    pieces = (data[start : start + PIECE] for start in range(0, len(data), PIECE))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    failure: BaseException | None = None
    """What a toy failed with: it may be wrong, but only in the way it says."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no news; a toy that fails is."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | Left):
            self.failure = error


@contextmanager
def serving(toy: Toy) -> Iterator[str]:
    """Serve ``toy`` on a loopback port; gives its URL."""
    handler = type("Handler", (toy.handler,), {"toy": toy})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
        if server.failure is not None:
            raise server.failure
