"""`caldrix serve`: one model behind the HTTP API, until it is told to stop."""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import trio
from attrs import frozen
from cyclopts import Parameter

from caldrix.cli.banner import banner
from caldrix.cli.logs import LogFormat, LogLevel, configure_logging
from caldrix.cli.opening import ModelFlags
from caldrix.cli.options import SamplingFlags, Whole, check_positive
from caldrix.cli.progress import TerminalProgress
from caldrix.cli.speculation import SpeculationFlags
from caldrix.cli.termination import ended_by_sigterm
from caldrix.decisions.decider import Decider
from caldrix.decisions.decider_config import (
    DECIDER_CONFIG,
    DeciderConfig,
    find_decider_config,
)
from caldrix.decisions.errors import UnfitModel
from caldrix.engine.engine import running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.speculation.opening import Speculation
from caldrix.errors import CaldrixError, Refusal
from caldrix.http import listening
from caldrix.http.config import MOST_BODY, MOST_BODY_WITH_IMAGES, ServerConfig
from caldrix.http.images import ImageReader
from caldrix.http.replay import ReplayRing
from caldrix.http.server import Shutdown
from caldrix.http.server import serve as serve_http
from caldrix.http.service import Service
from caldrix.http.telemetry import Telemetry
from caldrix.models.fields import UnsupportedModel
from caldrix.models.loading import TextModel
from caldrix.vision.eyes import find_processor
from caldrix.vision.processor import ImageProcessor
from caldrix.weights.names import DEFAULT_MODEL, resolve


class EngineLost(CaldrixError):
    """The engine ended by a failure of its own, and the server with it."""

    def __init__(self) -> None:
        super().__init__("the engine failed for good, so the server has ended; its log says why")


@frozen
class _Serving:
    """What is decided before anything is loaded."""

    config: ServerConfig
    sampling: SamplingSettings
    queue_depth: int
    replay_ring: int
    served_name: str
    lane: str
    path: Path
    decider: Decider | None
    processor: ImageProcessor | None
    speculation: Speculation | None


def serve(
    model: str | None = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: Whole = 8425,
    served_name: str | None = None,
    flags: ModelFlags | None = None,
    prefix_rows: Whole = 0,
    queue_depth: Whole = 64,
    sampling: SamplingFlags | None = None,
    speculation: SpeculationFlags | None = None,
    drain_timeout: float = 30.0,
    replay_ring: Whole = 0,
    allow_host: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> int:
    """Serve a model over HTTP, until Ctrl-C or SIGTERM.

    Parameters
    ----------
    model
        An alias, a directory, a .gguf file, a hub name or an Ollama name; smollm2 if none is given.
    host
        Address to listen on; 0.0.0.0 is every address of this machine.
    port
        Port to listen on; 0 finds a free one.
    served_name
        Name that requests call the model by, instead of its own.
    flags
        How the model is computed.
    prefix_rows
        Beginnings that several prompts share, such as a system prompt, kept beside the requests'
        own rows; each takes as much memory as one of those.
    queue_depth
        Requests that may wait beside those; one more is answered with a 429.
    sampling
        How tokens are picked, where a request says nothing.
    speculation
        Whether, and how, tokens are guessed ahead.
    drain_timeout
        Seconds that requests may take to end once the server is told to stop.
    replay_ring
        Requests to keep in memory, as token ids, so that /debug/replay can run them again; none if
        not given.
    allow_host
        Names to answer to beside the loopback's own, when listening on a loopback address.
    log_format
        text or json.
    log_level
        info, which has a line for each request; warning or error for less.
    """
    if not 0 <= port <= 65535:
        raise Refusal(f"--port must be 0 to 65535, got {port}")
    if not 0 <= drain_timeout < math.inf:
        raise Refusal(
            f"--drain-timeout must be a number of seconds, 0 or more, got {drain_timeout}"
        )
    if served_name is not None and not served_name.strip():
        raise Refusal("--served-name must not be empty")
    check_positive("--prefix-rows", prefix_rows, least=0)
    check_positive("--queue-depth", queue_depth, least=0)
    check_positive("--replay-ring", replay_ring, least=0)
    settings = (sampling or SamplingFlags()).settings()
    configure_logging(log_format, level=log_level)
    opening = (flags or ModelFlags()).opening(speculation)
    # Before the model: a port in use should not be told after a minute of loading.
    sockets = listening.bind(host, port)
    with ExitStack() as stack:
        stack.callback(listening.close, sockets)
        with ended_by_sigterm(), TerminalProgress() as progress:
            resolved = resolve(DEFAULT_MODEL if model is None else model, progress)
            # Before the weights: a config that can't be read should not be told after a minute.
            trained = find_decider_config(resolved.path)
            if trained is not None:
                opening = opening.for_decisions(progress)
            opened = stack.enter_context(
                opening.open(
                    resolved.path,
                    prefix_rows=prefix_rows,
                    # For decisions, which a single row answers.
                    keeps=True,
                    progress=progress,
                )
            )
        loaded = opened.model
        serving = _Serving(
            config=ServerConfig(
                host=host,
                port=port,
                allow_host=tuple(allow_host),
                drain_timeout=drain_timeout,
                most_body=MOST_BODY if loaded.vision is None else MOST_BODY_WITH_IMAGES,
            ),
            sampling=settings,
            queue_depth=queue_depth,
            replay_ring=replay_ring,
            served_name=served_name or resolved.served_name,
            lane=opening.lane.name,
            path=resolved.path,
            decider=None if trained is None else _decider(trained, loaded, resolved.path),
            processor=find_processor(loaded, resolved.path),
            speculation=opened.speculation,
        )
        listening.allow_many_connections()
        listening.listen(sockets)
        trio.run(_run, loaded, serving, sockets)
    return 0


def _decider(config: DeciderConfig, model: TextModel, path: Path) -> Decider:
    """How the model is asked that was trained for decisions. Raises a Refusal if it can't be."""
    try:
        return Decider.of(config, model.tokenizer, model.program.vocab_size)
    except UnfitModel as error:
        raise UnsupportedModel(
            f"{path / DECIDER_CONFIG} makes a decider of it, but {error}"
        ) from error


def _images(model: TextModel, serving: _Serving) -> ImageReader | None:
    if model.vision is None:
        return None
    assert serving.processor is not None
    return ImageReader(serving.processor, model.vision.encode, serving.queue_depth)


async def _run(model: TextModel, serving: _Serving, sockets: Sequence[socket.socket]) -> None:
    shutdown = Shutdown()
    telemetry = Telemetry(
        lane=serving.lane,
        replay=ReplayRing(serving.replay_ring) if serving.replay_ring else None,
    )
    async with (
        running_engine(
            model.executor,
            context=model.context,
            rows=model.rows,
            prefix_rows=model.prefix_rows,
            snapshots=model.snapshots,
            queue_depth=serving.queue_depth,
            speculator=None if serving.speculation is None else serving.speculation.speculator,
            observe_token=telemetry.metrics.time_per_output_token.observe,
        ) as engine,
        trio.open_nursery() as nursery,
    ):
        service = Service(
            served_name=serving.served_name,
            engine=engine,
            tokenizer=model.tokenizer,
            template=model.template,
            vocab_size=model.program.vocab_size,
            images=_images(model, serving),
            decider=serving.decider,
            sampling=serving.sampling,
            telemetry=telemetry,
        )
        await nursery.start(_stop_on_signals, shutdown)
        async with trio.open_nursery() as server:
            serve = partial(serve_http, service, serving.config, sockets=sockets, shutdown=shutdown)
            urls = await server.start(serve)
            print(_banner(model, serving, urls), flush=True)
        nursery.cancel_scope.cancel()
    if engine.failed:
        raise EngineLost


async def _stop_on_signals(
    shutdown: Shutdown, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            shutdown.request()


def _banner(model: TextModel, serving: _Serving, urls: Sequence[str]) -> str:
    return banner(
        model,
        urls,
        served_name=serving.served_name,
        path=serving.path,
        lane=serving.lane,
        decides=serving.decider is not None and model.rows == 1,
        speculation=None if serving.speculation is None else serving.speculation.summary,
    )
