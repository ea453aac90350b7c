"""A machine that lacks what a server needs: it says so in a line, or goes on without.

Room for its files and its log, memory, and files that it may have open.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import httpx2
import pytest

from caldrix.cli.main import execute
from caldrix.models.lane import LaneUnavailable
from caldrix.weights.progress import SILENT
from caldrix_cpu import compiled
from caldrix_cpu.library import load_kernels
from tests.soak.model import write_model
from tests.soak.process import noise, serving
from tests.support.compiled import BEST

UNIT = "lookup-F32"
SPARE_FILES = 20
PATIENCE = 30.0
BODY = {"model": "random", "prompt": "hi", "max_tokens": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "random")


@pytest.fixture
def refusal(model: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `caldrix serve` says when it refuses to start: a line, and status 2."""

    def refuse(*flags: str) -> str:
        assert execute(["serve", str(model), "--port", "0", *flags]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said.removeprefix("caldrix: ").removesuffix("\n")

    return refuse


def test_a_full_cache_has_kernels_compiled_for_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.TemporaryFile

    def on_a_full_disk(dir: Path | None = None) -> IO[bytes]:
        return real() if dir is None else Path("/dev/full").open("wb")

    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", on_a_full_disk)
    assert load_kernels(BEST, [UNIT], SILENT)[UNIT].address
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_wherever_the_compiler_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = tmp_path / "python"
    shell.write_text(f'#!/bin/sh\nulimit -f 1\nexec "{sys.executable}" "$@"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(shell))
    with pytest.raises(LaneUnavailable) as refused:
        load_kernels(BEST, [UNIT], SILENT)
    message = str(refused.value)
    assert message.startswith(f"kernels for {BEST.name} cannot be compiled: ")
    assert message.endswith("; CALDRIX_CPU_KERNELS=numpy runs without them")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_no_room_for_the_weights_that_a_budget_leaves_out(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    said = refusal("--weight-budget", "10K")
    assert said.startswith("--weight-budget needs room for weights in ")
    assert said.endswith(": No space left on device")


def test_short_memory(refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "available_memory", lambda: 1000)
    assert refusal() == (
        "the model's weights take 0.0 GiB, and 0.0 GiB of memory are available; "
        "choose a smaller model"
    )
    monkeypatch.setattr(compiled, "available_memory", lambda: 2**20)
    said = refusal("--max-batch", "4")
    assert said.startswith("a context of 32768 tokens in 4 rows takes ")
    assert said.endswith(" fits, and fewer rows (--max-batch, --prefix-rows) take less")


def test_no_more_files_can_be_opened(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(model, [], log) as server, ExitStack() as stack:
        before = server.open_files
        most = before + SPARE_FILES
        resource.prlimit(server.id, resource.RLIMIT_NOFILE, (most, most))
        address = httpx2.URL(server.url)
        assert address.port is not None
        for _ in range(2 * SPARE_FILES):
            stack.enter_context(socket.create_connection((address.host, address.port)))
        for _ in range(3):
            answer = httpx2.post(
                f"{server.url}/v1/completions", json=BODY, trust_env=False, timeout=PATIENCE
            )
            assert answer.status_code == 200
        stack.close()
        deadline = time.monotonic() + PATIENCE
        while server.open_files > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.open_files <= before
    (line,) = noise(log)
    entry = json.loads(line)
    assert (entry["event"], entry["level"]) == ("connections_exhausted", "warning")
    assert "Too many open files" in entry["reason"]


def test_a_log_that_cannot_be_written(model: Path) -> None:
    with serving(model, [], Path("/dev/full")) as server:
        for _ in range(2):
            answer = httpx2.post(
                f"{server.url}/v1/completions", json=BODY, trust_env=False, timeout=PATIENCE
            )
            assert answer.status_code == 200
