"""Servers as child processes: waited for until they answer, and ended with the block."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2
import pytest

from tests.foreign import serving as serving_module
from tests.foreign.servers import Server
from tests.foreign.serving import ServerNotStarted, serving

# Answers 503 to the first question, as a server that is still loading its model.
PROGRAM = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    status = 503

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(Handler.status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        Handler.status = 200

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(*command: str) -> Server:
    return Server("some-server", "1.2", lambda _, port: [*command, str(port)])


def test_a_server_is_waited_for_and_ended(tmp_path: Path) -> None:
    some = server(sys.executable, "-c", PROGRAM)
    with serving(some, tmp_path / "model", tmp_path / "log") as url:
        assert httpx2.post(url, json={}, trust_env=False).status_code == 200
    with pytest.raises(httpx2.ConnectError):
        httpx2.post(url, json={}, trust_env=False)
    assert '" 503 -' in (tmp_path / "log").read_text()


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    some = server(sys.executable, "-c", "raise SystemExit('no such model')")
    with (
        pytest.raises(
            ServerNotStarted, match=r"(?s)some-server 1\.2 ended .* 1 .*\nno such model$"
        ),
        serving(some, tmp_path / "model", tmp_path / "log"),
    ):
        pass


def test_a_server_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_module, "READY_WITHIN", 0.3)
    some = server(sys.executable, "-c", "import time; time.sleep(60)")
    with (
        pytest.raises(ServerNotStarted, match=r"did not answer within 0\.3 s"),
        serving(some, tmp_path / "model", tmp_path / "log"),
    ):
        pass


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    some = server(str(tmp_path / "no-such-program"))
    with (
        pytest.raises(
            ServerNotStarted, match=r"some-server 1\.2 can't be started: .*no-such-program"
        ),
        serving(some, tmp_path / "model", tmp_path / "log"),
    ):
        pass
