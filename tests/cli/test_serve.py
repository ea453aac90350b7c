"""`caldrix serve` as a process: what it prints, how signals end it, what it refuses at start."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from cyclopts import App

from caldrix.cli import serve as command
from caldrix.errors import Refusal

STREAM = {"model": "m", "prompt": "hi", "stream": True}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A path that resolves; the model itself is scripted."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


@contextmanager
def serve(model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, once it says that it is ready, and its address."""
    command = [sys.executable, "-m", "tests.support.scripted_process", str(model), "--port", "0"]
    process = subprocess.Popen(
        [*command, *flags],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(6)]
            address = re.search(r"http://127\.0\.0\.1:\d+", lines[4])
            assert address, (lines, process.stderr and process.stderr.read())
            yield process, address[0]
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and stderr."""
    _, errors = process.communicate(timeout=10)
    return process.returncode, errors


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_ready_means_ready_and_a_signal_ends_it_clean(model: Path, stop: signal.Signals) -> None:
    with serve(model, "--log-format", "json") as (process, address):
        assert httpx2.get(f"{address}/healthz", trust_env=False).text == "ok"
        process.send_signal(stop)
        status, errors = ended(process)
    assert status == 0
    assert [json.loads(line)["event"] for line in errors.splitlines()] == ["draining"]


def test_the_last_event_of_a_stream_that_was_not_waited_for(model: Path) -> None:
    with serve(model, "--drain-timeout", "0.1") as (process, address):
        with httpx2.stream(
            "POST", f"{address}/v1/completions", json=STREAM, trust_env=False
        ) as response:
            lines = response.iter_lines()
            assert next(lines).startswith('data: {"choices"')
            process.send_signal(signal.SIGTERM)
            *_, last = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == (
            "the engine is unavailable"
        )
        status, errors = ended(process)
    assert (status, errors.count("Traceback")) == (0, 0)


def test_two_interrupts_end_it_at_once(model: Path) -> None:
    with serve(model) as (process, address):
        with httpx2.stream(
            "POST", f"{address}/v1/completions", json=STREAM, trust_env=False
        ) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert "draining" in process.stderr.readline()
            assert next(line for line in lines if line).startswith('data: {"choices"')
            process.send_signal(signal.SIGINT)
            assert '"error"' in [line for line in lines if line][-1]
        assert ended(process)[0] == 0


def test_the_engines_end_ends_the_process_with_a_status_and_a_line(tmp_path: Path) -> None:
    lost = tmp_path / "lost.gguf"
    lost.write_bytes(b"GGUF")
    with serve(lost, "--log-format", "json") as (process, address):
        body = {"model": "lost", "prompt": "hi"}
        failed = httpx2.post(f"{address}/v1/completions", json=body, trust_env=False)
        assert failed.status_code == 500
        health = httpx2.get(f"{address}/healthz", trust_env=False)
        assert health.status_code == 503
        assert "the engine has failed" in health.json()["error"]["message"]
        status, errors = ended(process)
    *logged, last = errors.splitlines()
    assert (status, last) == (
        1,
        "caldrix: the engine failed for good, so the server has ended; its log says why",
    )
    assert "engine_ended" in [json.loads(line)["event"] for line in logged]


def test_sigterm_ends_with_status_0_though_requests_wait(model: Path) -> None:
    with serve(model, "--drain-timeout", "0.3") as (process, address):
        whole = {**STREAM, "stream": False}
        with (
            ThreadPoolExecutor(1) as thread,
            httpx2.stream(
                "POST", f"{address}/v1/completions", json=STREAM, trust_env=False
            ) as response,
        ):
            next(response.iter_lines())
            waits = thread.submit(
                httpx2.post, f"{address}/v1/completions", json=whole, trust_env=False
            )
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert waits.result(timeout=5).status_code == 503
        status, errors = ended(process)
    assert (status, errors.count("Traceback")) == (0, 0)


def test_requests_are_logged_and_can_be_run_again(model: Path) -> None:
    body = {"model": "m", "prompt": "hi", "max_tokens": 3}
    with serve(model, "--replay-ring", "2", "--log-format", "json") as (process, address):
        answer = httpx2.post(f"{address}/v1/completions", json=body, trust_env=False).json()
        replay = httpx2.post(f"{address}/debug/replay/{answer['id']}", trust_env=False).json()
        assert (replay["same"], replay["tokens"]) == (True, 3)
        process.send_signal(signal.SIGTERM)
        _, errors = ended(process)
    request, replayed, _ = [json.loads(line) for line in errors.splitlines()]
    assert (request["event"], request["level"], request["id"]) == ("request", "info", answer["id"])
    assert (request["status"], request["completion_tokens"]) == (200, 3)
    assert (replayed["event"], replayed["id"]) == ("replayed", answer["id"])


def test_less_can_be_logged(model: Path) -> None:
    body = {"model": "m", "prompt": "hi", "max_tokens": 3}
    with serve(model, "--log-level", "warning") as (process, address):
        assert httpx2.post(f"{address}/v1/completions", json=body, trust_env=False).is_success
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "")


def refused(*arguments: str) -> str:
    with pytest.raises(Refusal) as caught:
        App(default_command=command.serve)(arguments, exit_on_error=False, print_error=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "70000"], "--port must be 0 to 65535, got 70000"),
        (["--top-p", "2"], "--top-p must be 0 < p <= 1, got 2.0"),
        (["--seed", "-2"], "--seed must be a non-negative integer, or -1, got -2"),
        (["--context", "1"], "--context must be a whole number of at least 2, got 1"),
        (["--queue-depth", "-1"], "--queue-depth must be a whole number of at least 0, got -1"),
        (["--replay-ring", "-1"], "--replay-ring must be a whole number of at least 0, got -1"),
        (["--threads", "0"], "--threads must be auto or a whole number of at least 1, got 0"),
        (
            ["--drain-timeout", "nan"],
            "--drain-timeout must be a number of seconds, 0 or more, got nan",
        ),
        (
            ["--host", "host.invalid"],
            "host.invalid is no address of this machine (); "
            "choose another with --host, such as 127.0.0.1 or 0.0.0.0",
        ),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], message: str) -> None:
    # What a resolver says in the parentheses differs between systems.
    assert re.sub(r"\(.*\)", "()", refused(*flags)) == message


def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused("no-such-model", "--port", str(port)) == (
            f"port {port} on 127.0.0.1 is in use; choose another with --port, "
            "or let --port 0 find a free one"
        )
