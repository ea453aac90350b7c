"""A whole server for tests: real engine, real sockets on the loopback, a scripted model."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec

import httpx2
import trio
from attrs import frozen

from caldrix.decisions.decider import Decider
from caldrix.engine.engine import Engine, running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.http.config import ServerConfig
from caldrix.http.images import ImageReader
from caldrix.http.replay import ReplayRing
from caldrix.http.server import Shutdown, serve
from caldrix.http.service import Service
from caldrix.http.telemetry import Telemetry
from caldrix.models.lane import Executor
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer
from tests.support import miniature
from tests.support.scripted import Script, ScriptedExecutor, endless, reply

MODEL = "tiny/model"
P = ParamSpec("P")

_TEST_TIMEOUT = 20.0


def trio_test(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs an async test under trio, and ends it with an error if it hangs."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            with trio.fail_after(_TEST_TIMEOUT):
                await test(*args, **kwargs)

        trio.run(bounded)

    return run


async def wait_idle(engine: Engine) -> None:
    """Returns once no request runs or waits."""
    while engine.running or engine.waiting:  # noqa: ASYNC110  # the engine has no need to tell
        await trio.sleep(0.002)


@frozen(eq=False)
class Running:
    """A server that runs, and all that a test may want of it."""

    url: str
    service: Service
    shutdown: Shutdown
    client: httpx2.AsyncClient
    finished: trio.Event

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parsed = httpx2.URL(self.url)
        assert parsed.port is not None
        return parsed.host, parsed.port

    async def wait_busy(self, *, running: int, waiting: int = 0) -> None:
        """Returns once so many requests run and wait; an error if that does not come to be."""
        engine = self.service.engine
        with trio.fail_after(5):
            while (engine.running, engine.waiting) != (running, waiting):  # noqa: ASYNC110  # no event
                await trio.sleep(0.002)

    async def wait_rows_free(self, seconds: float = 5.0) -> None:
        """Returns once no request runs or waits; an error if that does not come to be."""
        with trio.fail_after(seconds):
            await wait_idle(self.service.engine)


def says(text: str) -> ScriptedExecutor:
    """A model that answers ``text`` to everything."""
    return scripted(reply(miniature.ids(text), miniature.end_id()))


def never_ends(text: str = "a") -> ScriptedExecutor:
    """A model that says a one-token ``text`` for ever."""
    (token,) = miniature.ids(text)
    return scripted(endless(token))


def scripted(script: Script, *, fail_at: tuple[int, ...] = ()) -> ScriptedExecutor:
    """A model that follows ``script`` over the miniature vocabulary."""
    return ScriptedExecutor(script, miniature.tokenizer().vocab_size, fail_at=fail_at)


@asynccontextmanager
async def serving(
    executor: Executor,
    *,
    template: str | None = miniature.CHATML,
    context: int = 4096,
    tokenizer: Tokenizer | None = None,
    rows: int = 1,
    prefix_rows: int = 0,
    snapshots: int = 0,
    queue_depth: int = 64,
    decider: Decider | None = None,
    images: ImageReader | None = None,
    sampling: SamplingSettings | None = None,
    config: ServerConfig | None = None,
    replay_ring: int = 0,
) -> AsyncIterator[Running]:
    """A server on a free port for as long as the block lasts.

    The tokenizer is the miniature one if none is given.
    """
    tokenizer = tokenizer or miniature.tokenizer()
    shutdown, finished = Shutdown(), trio.Event()
    telemetry = Telemetry(lane="scripted", replay=ReplayRing(replay_ring) if replay_ring else None)

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(
            service,
            config or ServerConfig(port=0),
            shutdown=shutdown,
            task_status=task_status,
        )
        finished.set()

    async with (
        running_engine(
            executor,
            context=context,
            rows=rows,
            prefix_rows=prefix_rows,
            snapshots=snapshots,
            queue_depth=queue_depth,
            observe_token=telemetry.metrics.time_per_output_token.observe,
        ) as engine,
        trio.open_nursery() as nursery,
    ):
        service = Service(
            served_name=MODEL,
            engine=engine,
            tokenizer=tokenizer,
            template=None if template is None else ChatTemplate(template, "", miniature.END),
            vocab_size=tokenizer.vocab_size,
            telemetry=telemetry,
            decider=decider,
            images=images,
            sampling=sampling or SamplingSettings(),
        )
        (url,) = await nursery.start(run)
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
            yield Running(url, service, shutdown, client, finished)
        nursery.cancel_scope.cancel()
