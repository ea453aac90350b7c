"""Odd and hostile targets: each told in a line, none a traceback, none a wait without end."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from caldrix_conformance import patience
from caldrix_conformance import traffic as traffic_module
from caldrix_conformance.options import Settings
from caldrix_conformance.patience import BUSY
from caldrix_conformance.run import judge, run
from caldrix_conformance.target import base_url, shown_url
from caldrix_conformance.verdicts import Status
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json, Toy, serving

LISTED = b'{"data":[{"id":"m","object":"model","owned_by":"me"}],"object":"list"}'


def http(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    head = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join((*head, b"Connection: close", b"", body))


@contextmanager
def saying(first: bytes, *others: bytes) -> Iterator[str]:
    """A port that says ``first`` to whoever asks, and then ``others`` without end, if any."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                self.request.recv(65536)
                self.request.sendall(first)
                while others and not stopped.is_set():
                    self.request.sendall(b"".join(others))
            except ConnectionError:
                pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    stopped = threading.Event()
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            stopped.set()
            server.shutdown()
            thread.join()


GZIP = b"Content-Encoding: gzip"
NAMELESS = "and names no model; give the model's name with --model"

HOSTILE = [
    (b"SSH-2.0-OpenSSH_9.6\r\n", "is an HTTP server there, and the right one?"),
    (b"", "is an HTTP server there, and the right one?"),
    (http(b"no gzip", GZIP), "is an HTTP server there, and the right one?"),
    (http(b"[" * 100_000 + b"]" * 100_000), NAMELESS),
    (http(b'{"data": []}'), NAMELESS),
    (http(b'{"data": [{"id": 7}]}'), NAMELESS),
    (http(b"<html>"), NAMELESS),
    (
        http(b"", b"Location: http://elsewhere.example/v1", status=b"302 Found"),
        "give the address it points to, http://elsewhere.example/v1",
    ),
    (http(b"{}", status=b"401 Unauthorized"), "it wants a key, or another Host"),
]


@pytest.mark.parametrize(("answer", "told"), HOSTILE)
def test_a_target_that_says_nothing_of_use(
    answer: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with saying(answer) as url:
        assert run(Settings(url=url, timeout=5)) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith(url)
    assert error.count("\n") == 1


def test_a_list_of_models_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    with saying(endless, b" " * 65536) as url:
        assert run(Settings(url=url, timeout=0.2)) == 2
    assert "the answer goes on after" in capsys.readouterr().err


class NeverEnds(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        *_, done = super().events(path, body)
        while True:
            yield self.encode({"choices": []})
            assert done == "[DONE]"


def test_a_stream_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "MOST_ANSWERED", 100_000)
    with serving(NeverEnds()) as url:
        report = judge(Settings(url=url, only=["streaming.done"]))
    assert report is not None
    (verdict,) = report.verdicts
    assert verdict.status is Status.FAIL
    assert verdict.seen == "no answer: the answer goes on after 100,000 bytes"


class BusyAtTimes(Toy):
    asked = 0

    def check(self, path: str, body: Json) -> None:
        self.asked += 1
        if self.asked % 3 == 0:
            raise Refused(BUSY, "the request queue is full")
        super().check(path, body)


def test_a_server_that_is_busy_at_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_pause", lambda wanted: 0)
    with serving(BusyAtTimes()) as url:
        report = judge(Settings(url=url, only=["chat.*", "sampling.*"]))
    assert report is not None
    assert {v.clause.id: v.seen for v in report.verdicts if v.status is Status.FAIL} == {}


class OddlyNamed(Toy):
    def get(self, path: str) -> Json | str:
        listed = '{"data":[{"id":"\\u001b[31m\\ud800x","object":"model","owned_by":"me"}]}'
        return listed if path == "/v1/models" else super().get(path)


def test_a_model_with_an_odd_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report"
    with serving(OddlyNamed()) as url:
        run(Settings(url=url, only=["models.*"], html=path))
    assert "\x1b" not in capsys.readouterr().out
    assert r"\x1b[31m\ud800x" in path.read_text("utf-8")


def test_what_is_said_of_a_target_holds_no_secrets(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("json", "html", "junit")]
    with serving(Toy()) as url:
        secret = url.replace("//", "//someone:pass-word@")
        settings = Settings(
            url=secret, only=["models.*"], json=paths[0], html=paths[1], junit=paths[2]
        )
        assert run(settings) == 0
    for path in paths:
        assert "pass-word" not in path.read_text()
        assert "c29tZW9uZTpwYXNzLXdvcmQ" not in path.read_text()


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("localhost:8425", "http://localhost:8425"),
        ("http://h:1/v1/", "http://h:1"),
        ("http://h:1/v1/?x=1#y", "http://h:1"),
        ("https://h/proxy/v1", "https://h/proxy"),
        ("http://[::1]:8425/v1", "http://[::1]:8425"),
    ],
)
def test_addresses(url: str, root: str) -> None:
    assert base_url(url) == root
    assert shown_url(root) == root


def test_a_port_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Settings(url="http://localhost:99999")) == 2
    assert "has no port from 1 to 65535" in capsys.readouterr().err


def test_a_pattern_that_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy()) as url:
        assert run(Settings(url=url, only=["chat.*", "zzz.*"])) == 2
    assert capsys.readouterr().err == (
        "no clause of caldrix is called 'zzz.*'; `spec list` shows them all\n"
    )


def test_one_file_for_two_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report"
    assert run(Settings(url="http://localhost:1", json=path, html=path)) == 2
    assert "two forms of the report would be written to one file" in capsys.readouterr().err
