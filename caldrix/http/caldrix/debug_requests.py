"""GET /debug/requests: the records of the most recent requests."""

from __future__ import annotations

from caldrix.http.encoding import encode_json
from caldrix.http.exchange import Answer, Incoming
from caldrix.http.service import Service


async def show(service: Service, incoming: Incoming) -> Answer:
    """The records, the newest first; asking for them adds none."""
    records = [record.to_json() for record in service.telemetry.records]
    return Answer(encode_json({"requests": records}))
