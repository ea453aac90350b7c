"""The contract ``caldrix``: OpenAI's chat completions and completions, one module a route."""

from __future__ import annotations

from caldrix.http.caldrix import chat, completions, health, models
from caldrix.http.exchange import Route

ROUTES = (
    Route("POST", "/v1/chat/completions", chat.create),
    Route("POST", "/v1/completions", completions.create),
    Route("GET", "/v1/models", models.show),
    Route("GET", "/healthz", health.show),
    Route("GET", "/health", health.show),
)
