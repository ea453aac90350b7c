"""An OpenCL device is lost while requests run: what they are told, and that the server ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from caldrix.http import server as server_module
from caldrix.models.lane import Executor
from tests.soak.model import write_model
from tests.support.opencl import on_host, require_device
from tests.support.random_models import random_model
from tests.support.serving import MODEL, Running, serving, trio_test
from tests.support.wire import TEXT, connected, post

PROMPTLY = 15.0
# Of 96 tokens, as the model has.
PROMPT = "ABCDEFGH" * 8
REQUEST = {"model": MODEL, "prompt": PROMPT}
STREAM = {**REQUEST, "stream": True}


@pytest.fixture
def executor() -> Iterator[Executor]:
    require_device()
    model = random_model("llama", "Q8_0")
    with on_host(model.program, model.weights, context=100_000, rows=2) as executor:
        yield executor


def lost(*arguments: object, **named: object) -> None:
    import pyopencl

    raise pyopencl.RuntimeError("the bus fell off")


async def assert_ends(server: Running) -> None:
    """Health says so, others are refused, and then it ends."""
    await server.service.engine.ended.wait()
    assert (await server.client.get("/healthz")).status_code == 503
    assert (await server.client.post(TEXT, json=REQUEST)).status_code == 503
    with trio.fail_after(PROMPTLY):
        await server.finished.wait()
    assert server.service.engine.failed


@trio_test
async def test_a_driver_that_fails_in_a_step(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 1.0)
    with capture_logs() as logs:
        async with (
            serving(executor, context=100_000, rows=2) as server,
            connected(server) as running,
        ):
            await running.send(post(STREAM))
            await running.until(b'"text":')
            with monkeypatch.context() as broken:
                broken.setattr("pyopencl.enqueue_nd_range_kernel", lost)
                said = await running.until(b'"error"')
                assert b"the engine failed during the request" in said + await running.rest()
                await assert_ends(server)
    assert [entry["log_level"] for entry in logs if entry["event"] == "engine_ended"] == ["error"]


@trio_test
async def test_a_driver_that_fails_while_a_row_is_copied(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 1.0)
    with capture_logs():
        async with (
            serving(executor, context=100_000, rows=2) as server,
            connected(server) as running,
        ):
            await running.send(post(STREAM))
            await running.until(b'"text":')
            with monkeypatch.context() as broken:
                broken.setattr("caldrix_opencl.rows.RowBuffers._move", lost)
                # It begins as the one that runs, whose row it would have a copy of.
                answer = await server.client.post(TEXT, json=REQUEST)
                assert answer.status_code in (500, 503)
                said = await running.until(b'"error"')
                assert b"the engine failed during the request" in said + await running.rest()
                await assert_ends(server)


LOSING = """
import sys
import pyopencl
from caldrix.cli.main import execute
from caldrix_opencl.executor import OpenClExecutor

ready = OpenClExecutor.make_ready

def make_ready(self):
    ready(self)
    def lost(*arguments, **named):
        raise pyopencl.RuntimeError("the bus fell off")
    pyopencl.enqueue_nd_range_kernel = lost

OpenClExecutor.make_ready = make_ready
sys.exit(execute(["serve", *sys.argv[1:]]))
"""


def test_the_process_ends_with_a_status_and_a_line(tmp_path: Path) -> None:
    require_device()
    path = write_model(tmp_path / "model")
    flags = [str(path), "--port", "0", "--backend", "host", "--context", "512"]
    with subprocess.Popen(
        [sys.executable, "-c", LOSING, *flags, "--log-level", "error"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(6)]
            assert "host, 8 requests at a time" in lines[2]
            url = lines[4].split()[1].removesuffix("/v1")
            body = {"model": path.name, "prompt": "hi"}
            answer = httpx2.post(f"{url}{TEXT}", json=body, trust_env=False)
            assert answer.status_code == 500
            _, errors = process.communicate(timeout=PROMPTLY)
        finally:
            process.kill()
    assert process.returncode == 1
    assert errors.splitlines()[-1] == (
        "caldrix: the engine failed for good, so the server has ended; its log says why"
    )
