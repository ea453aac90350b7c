"""What a server tells of its requests: a record, the metrics and a line in the log for each."""

from __future__ import annotations

from collections import deque

import structlog
from attrs import define, field

from caldrix.http.metrics import Metrics
from caldrix.http.records import MOST_RECORDS, RequestRecord, record_of
from caldrix.http.replay import ReplayRing
from caldrix.http.watch import RequestWatch

_log = structlog.get_logger(__name__)

_TOLD = (
    "id",
    "route",
    "status",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "queue_ms",
    "prefill_ms",
    "decode_ms",
)
"""What the log's line has of a record, where it is known."""


@define(eq=False, kw_only=True)
class Telemetry:
    """Of one server; ``lane`` is what computes its answers."""

    lane: str
    metrics: Metrics = field(factory=Metrics)
    replay: ReplayRing | None = None
    """None keeps no request for a replay."""
    _records: deque[RequestRecord] = field(
        factory=lambda: deque(maxlen=MOST_RECORDS), init=False, repr=False
    )

    @property
    def records(self) -> list[RequestRecord]:
        """The records of the most recent requests, the newest first."""
        return list(self._records)

    def watch(self, route: str) -> RequestWatch:
        """A request to ``route`` from here to its end, which is then told of."""
        return RequestWatch(route, self._note)

    def _note(self, watch: RequestWatch) -> None:
        record = record_of(watch, self.lane)
        self._records.appendleft(record)
        self.metrics.count(watch)
        if self.replay is not None:
            self.replay.keep(watch)
        _tell(record)


def _tell(record: RequestRecord) -> None:
    known = record.to_json()
    _log.info("request", **{name: known[name] for name in _TOLD if known[name] is not None})
