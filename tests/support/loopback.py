"""A web server on the loopback address, and a Progress that remembers, for tests of downloads."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Callable, Iterator

from attrs import define, field

from caldrix.weights.progress import Unit

Answer = tuple[int, dict[str, str], bytes]


@define
class LoopbackServer:
    """Serves ``answers`` by path, with ranges; ``cuts`` ends an answer early, once each."""

    url: str
    answers: dict[str, bytes | Callable[[], Answer]] = field(factory=dict)
    cuts: dict[str, list[int]] = field(factory=dict)
    ranges: bool = True
    requests: list[tuple[str, str, str | None]] = field(factory=list)

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.requests]

    def answer(self, path: str, wanted: str | None) -> Answer:
        found = self.answers.get(path)
        if found is None:
            return 404, {}, b"nothing here"
        if callable(found):
            return found()
        if wanted and self.ranges and (match := re.fullmatch(r"bytes=(\d+)-", wanted)):
            start = int(match[1])
            if start >= len(found):
                return 416, {"Content-Range": f"bytes */{len(found)}"}, b""
            place = f"bytes {start}-{len(found) - 1}/{len(found)}"
            return 206, {"Content-Range": place}, found[start:]
        return 200, {}, found


def _handler(server: LoopbackServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, wanted = self.path.partition("?")[0], self.headers["Range"]
            server.requests.append((self.command, path, wanted))
            status, headers, body = server.answer(path, wanted)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            cuts = server.cuts.get(path)
            if cuts:
                body = body[: cuts.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  # the name that the standard library calls

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[LoopbackServer]:
    state = LoopbackServer("")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(state)) as httpd:
        httpd.daemon_threads = True
        state.url = f"http://127.0.0.1:{httpd.server_address[1]}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        httpd.shutdown()
        thread.join()


@define
class Recorder:
    """A Progress that keeps what it is told."""

    begun: list[tuple[str, int | None, int]] = field(factory=list)
    received: int = 0
    notes: list[str] = field(factory=list)

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        assert unit == "bytes"
        self.begun.append((what, total, done))

    def advance(self, count: int) -> None:
        self.received += count

    def note(self, text: str) -> None:
        self.notes.append(text)
