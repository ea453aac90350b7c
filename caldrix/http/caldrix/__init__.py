"""The contract ``caldrix``: OpenAI's chat completions and completions, and decisions.

One module a route.
"""

from __future__ import annotations

from caldrix.http.caldrix import (
    chat,
    completions,
    debug_requests,
    health,
    metrics,
    models,
    replay,
    systemone,
)
from caldrix.http.exchange import Route

ROUTES = (
    Route("POST", "/v1/chat/completions", chat.create, recorded=True),
    Route("POST", "/v1/completions", completions.create, recorded=True),
    Route("POST", "/v1/systemone", systemone.create, recorded=True),
    Route("GET", "/v1/models", models.show),
    Route("GET", "/healthz", health.show),
    Route("GET", "/health", health.show),
    Route("GET", "/metrics", metrics.show),
    Route("GET", "/debug/requests", debug_requests.show),
    Route("GET", "/debug/replay", replay.show),
    Route("POST", "/debug/replay/<id>", replay.run),
)
