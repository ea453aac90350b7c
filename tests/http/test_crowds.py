"""Many clients, and those who hold things up: none of them costs the others more than a moment."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest
import trio
from structlog.testing import capture_logs
from structlog.typing import EventDict

from caldrix.http import listening
from caldrix.http.config import ServerConfig, Timeouts
from tests.support import miniature
from tests.support.serving import MODEL, Running, never_ends, says, serving, trio_test
from tests.support.wire import TEXT, Wire, connected, head, post, streaming, unharmed

REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}
HEALTH = head("GET /healthz HTTP/1.1")
CROWD = 2000


@contextmanager
def file_limit(files: int) -> Iterator[None]:
    """Within the block this process may have so many files open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < files:
        pytest.skip(f"the system lets a process open {before[1]} files, and {files} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Within the block this process can open so many files more."""
    hoard: list[int] = []
    with file_limit(1024):
        try:
            while True:
                try:
                    hoard.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
            for _ in range(count):
                os.close(hoard.pop())
            yield
        finally:
            for file in hoard:
                os.close(file)


@asynccontextmanager
async def arrived(server: Running, count: int) -> AsyncIterator[list[Wire]]:
    """So many clients that connect without a pause, which the server sees only then."""
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(count)]
        for client in clients:
            client.connect(server.address)
        yield [Wire(trio.SocketStream(trio.socket.from_stdlib_socket(each))) for each in clients]


def complaints(logs: Sequence[EventDict]) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] != "info"]


@trio_test
async def test_two_thousand_idle_connections() -> None:
    # Both ends of each are this process's.
    with file_limit(2 * CROWD + 500):
        async with serving(says("ok")) as server, unharmed(server), AsyncExitStack() as crowd:
            wires: list[Wire] = []

            async def arrive() -> None:
                wires.append(await crowd.enter_async_context(connected(server)))

            async with trio.open_nursery() as nursery:
                for _ in range(CROWD):
                    nursery.start_soon(arrive)
            # They cost the others nothing, and each is served.
            assert (await server.client.post(TEXT, json=REQUEST)).status_code == 200
            for wire in wires[::100]:
                await wire.send(HEALTH)
                assert (await wire.answer()).body == b"ok"


def test_the_process_takes_what_files_it_may_have() -> None:
    with file_limit(512):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        listening.allow_many_connections()
        most = 10_240 if hard == resource.RLIM_INFINITY else min(hard, 10_240)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)


@trio_test
async def test_out_of_files_the_idle_make_room() -> None:
    with capture_logs() as logs:
        async with (
            serving(never_ends(), context=10**6) as server,
            unharmed(server),
            streaming(server) as busy,
            arrived(server, 20) as clients,
        ):
            with files_left(10):
                await clients[-1].send(HEALTH)
                assert (await clients[-1].answer()).body == b"ok"
                # Whoever is being served goes on; whoever was idle can come again.
                await busy.until(b'"text":"a"')
                assert await clients[0].rest() == b""
    assert complaints(logs) == ["connections_exhausted"]


@trio_test
async def test_out_of_files_and_nobody_idle_the_next_waits_for_its_turn() -> None:
    with capture_logs() as logs:
        async with (
            serving(never_ends(), rows=2, context=10**6) as server,
            unharmed(server),
            streaming(server) as first,
            streaming(server) as second,
        ):
            # The one file left is the client's own.
            with files_left(1):
                async with arrived(server, 1) as (waiting,):
                    await waiting.send(HEALTH)
                    with trio.move_on_after(0.2) as patience:
                        await waiting.answer()
                    assert patience.cancelled_caught
                    await first.until(b'"text":"a"')
                    await second.stream.aclose()
                    assert (await waiting.answer()).body == b"ok"
    assert complaints(logs) == ["connections_exhausted"]


@trio_test
async def test_a_slow_reader_of_a_long_answer_is_no_stalled_one() -> None:
    config = ServerConfig(port=0, timeouts=Timeouts(write=0.3))
    executor = never_ends(miniature.LONG)
    async with (
        serving(executor, context=10**6, config=config) as server,
        unharmed(server),
        connected(server) as slow,
    ):
        await slow.send(post({**REQUEST, "max_tokens": 160}))
        begun = trio.current_time()
        received = 0
        while received < 160 * len(miniature.LONG):
            received += len(await slow.stream.receive_some(2**17))
            await trio.sleep(0.01)
        assert trio.current_time() - begun > 2 * config.timeouts.write


@trio_test
async def test_a_stalled_reader_never_stalls_its_peer() -> None:
    config = ServerConfig(port=0, timeouts=Timeouts(write=0.5))
    executor = never_ends(miniature.LONG)
    with capture_logs() as logs:
        async with (
            serving(executor, rows=2, context=10**6, config=config) as server,
            unharmed(server),
            connected(server) as stalled,
            streaming(server) as peer,
        ):
            await stalled.send(post(STREAM))
            await stalled.stream.receive_some(1)
            # What the sockets hold is full long before that.
            for _ in range(300):
                await peer.until(b'L"')
            while server.service.engine.running == 2:
                await peer.until(b'L"')
            # The other alone was ended, and the peer never noticed.
            for _ in range(10):
                await peer.until(b'L"')
    assert complaints(logs) == ["reader_stalled"]
