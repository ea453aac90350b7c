"""GET /v1/models: the one model this server serves."""

from __future__ import annotations

from caldrix.http.encoding import encode_json
from caldrix.http.exchange import Answer, Incoming
from caldrix.http.service import Service


async def show(service: Service, incoming: Incoming) -> Answer:
    """The list of one, as the document shows it; its owner is the document's own."""
    model = {"id": service.served_name, "object": "model", "owned_by": "inferno"}
    return Answer(encode_json({"data": [model], "object": "list"}))
