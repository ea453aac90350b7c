"""GET /debug/replay and POST /debug/replay/{id}: the requests kept, and one of them run again.

A replay is computed as any request is, so it waits in the queue and is refused where one would be.
It is no request of a client's: it has no record, is not kept itself, and counts only where the
engine counts, in its gauges and in the time of each token.
"""

from __future__ import annotations

import structlog

from caldrix.http.decoding import spell
from caldrix.http.encoding import encode_json
from caldrix.http.errors import ApiError
from caldrix.http.exchange import Answer, Incoming
from caldrix.http.replay import ReplayRing, first_difference
from caldrix.http.service import Service

_NOTHING = (b"", b"{}")
"""Bodies of a request without one; some clients send an empty object."""

_log = structlog.get_logger(__name__)


async def show(service: Service, incoming: Incoming) -> Answer:
    """The requests that can be run again, the newest first. Raises ApiError."""
    kept = [recording.to_json() for recording in _ring(service)]
    return Answer(encode_json({"requests": kept}))


async def run(service: Service, incoming: Incoming) -> Answer:
    """Runs a request again, and says whether its tokens are the same.

    Raises ApiError, and what the engine raises of any request.
    """
    answer_id = incoming.path_parameters["id"]
    recording = _ring(service).find(answer_id)
    if recording is None:
        raise ApiError(
            404,
            f"no request {spell(answer_id)} is kept for a replay; "
            "GET /debug/replay lists those that are",
        )
    if incoming.body.strip() not in _NOTHING:
        raise ApiError(400, "a replay takes no settings but those it was kept with; send no body")
    tokens: list[int] = []
    async with service.engine.submit(recording.request()) as generation:
        while taken := await generation.take():
            tokens.extend(taken)
    difference = first_difference(recording.tokens, tokens)
    result = {
        "id": answer_id,
        "same": difference is None,
        "first_difference": difference,
        "tokens": len(recording.tokens),
        "replayed_tokens": len(tokens),
    }
    _log.info("replayed", **result)
    return Answer(encode_json(result))


def _ring(service: Service) -> ReplayRing:
    ring = service.telemetry.replay
    if ring is None:
        raise ApiError(
            404, "no request is kept for a replay; start the server with --replay-ring N"
        )
    return ring
