"""A server as a child process: started on a free port, waited for, and ended with the block."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.foreign.servers import MODEL_NAME, Server

READY_WITHIN = 120.0
"""Seconds: a first start may compile kernels."""
STOPS_WITHIN = 10.0
_LINES_TOLD = 8

# One token: some servers list their models while they still load them.
_QUESTION: Mapping[str, object] = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 1}


class ServerNotStarted(Exception):
    """The server ended, or did not answer, before it could be judged."""


@contextmanager
def serving(server: Server, model: Path, log: Path) -> Iterator[str]:
    """``server`` on the GGUF file ``model``: gives its URL once it answers; it writes to ``log``.

    Raises ServerNotStarted, with the end of the log, if it does not come to that.
    """
    port = _free_port()
    with log.open("wb") as output:
        try:
            # In a session of its own, so that Ctrl-C ends it by this block and not beside it.
            process = subprocess.Popen(
                server.command(model, port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerNotStarted(f"{server.title} can't be started: {error}") from error
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(server, process, url, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def _wait_until_ready(
    server: Server, process: subprocess.Popen[bytes], url: str, log: Path
) -> None:
    deadline = time.monotonic() + READY_WITHIN
    # The environment's proxies are for the world outside.
    with httpx2.Client(base_url=url, trust_env=False, timeout=READY_WITHIN) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerNotStarted(
                    f"{server.title} ended with status {process.returncode} before it was ready; "
                    f"{log} ends with:\n{_end_of(log)}"
                )
            if _answers(client):
                return
            time.sleep(0.2)
    raise ServerNotStarted(
        f"{server.title} did not answer within {READY_WITHIN:g} s; {log} ends with:\n{_end_of(log)}"
    )


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.post("/v1/completions", json=dict(_QUESTION)).status_code == 200
    except httpx2.TransportError:
        return False


def _end_of(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(lines[-_LINES_TOLD:]) or "nothing"
