"""GET /healthz and /health: whether requests are taken."""

from __future__ import annotations

from caldrix.engine.errors import EngineUnavailable
from caldrix.http.errors import ApiError
from caldrix.http.exchange import Answer, Incoming
from caldrix.http.service import Service


async def show(service: Service, incoming: Incoming) -> Answer:
    """``ok``; once the engine has stopped, its 503, which tells a failure from an end."""
    if service.engine.failed:
        raise ApiError(
            503, "the engine has failed and takes no requests; the server's log says why"
        )
    if service.engine.stopped:
        raise EngineUnavailable
    return Answer(b"ok", content_type="text/plain; charset=utf-8")
