"""GET /metrics: counters, gauges and histograms as Prometheus reads them."""

from __future__ import annotations

from caldrix.http.exchange import Answer, Incoming
from caldrix.http.metrics import CONTENT_TYPE
from caldrix.http.service import Service


async def show(service: Service, incoming: Incoming) -> Answer:
    """The metrics as they are now."""
    page = service.telemetry.metrics.exposition(service.engine)
    return Answer(page, content_type=CONTENT_TYPE)
