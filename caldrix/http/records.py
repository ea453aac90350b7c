"""Records of the most recent requests: counts, times and settings, and never a token or a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import asdict, frozen

from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.telemetry import Timeline
from caldrix.http.watch import RequestWatch, TokenCounts

MOST_RECORDS = 256


@frozen
class Speculative:
    """Draft tokens of a request that was guessed ahead."""

    proposed: int
    accepted: int

    @classmethod
    def of(cls, counts: TokenCounts) -> Speculative | None:
        """None where nothing was proposed."""
        return cls(counts.proposed, counts.accepted) if counts.proposed else None


@frozen
class Phases:
    """How long a request waited and was computed, in milliseconds.

    Of several readings, how long all of them did. A phase that was under way at the end lasted
    until then; one that never began is None.
    """

    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None

    @classmethod
    def of(cls, timelines: Sequence[Timeline], ended: float) -> Phases:
        """The phases of a request that ended then."""
        return cls(
            _milliseconds(((line.submitted, line.started) for line in timelines), ended),
            _milliseconds(((line.started, line.first_token) for line in timelines), ended),
            _milliseconds(((line.first_token, line.last_token) for line in timelines), ended),
        )


@frozen(kw_only=True)
class RequestRecord:
    """A request that is over. Of one that the engine never took, little is known."""

    id: str | None
    """The answer's."""
    route: str
    received: float
    """Seconds since 1970."""
    status: int
    phases: Phases
    counts: TokenCounts | None
    finish_reason: str | None
    sampling: SamplingSettings | None
    """The seed is the one used, None for greedy."""
    lane: str | None
    """None where nothing was computed."""

    def to_json(self) -> Mapping[str, object]:
        """The record as GET /debug/requests lists it."""
        counts = self.counts
        speculative = None if counts is None else Speculative.of(counts)
        return {
            "id": self.id,
            "route": self.route,
            "received": self.received,
            "status": self.status,
            **asdict(self.phases),
            "prompt_tokens": None if counts is None else counts.prompt,
            "completion_tokens": None if counts is None else counts.completion,
            "cached_tokens": None if counts is None else counts.cached,
            "finish_reason": self.finish_reason,
            "sampling": None if self.sampling is None else asdict(self.sampling),
            "speculative": None if speculative is None else asdict(speculative),
            "lane": self.lane,
        }


def record_of(watch: RequestWatch, lane: str) -> RequestRecord:
    """The record of a request that has ended, on a server that computes on ``lane``."""
    assert watch.status is not None
    assert watch.ended is not None
    return RequestRecord(
        id=watch.answer_id,
        route=watch.route,
        received=watch.received,
        status=watch.status,
        phases=Phases.of(watch.timelines, watch.ended),
        counts=watch.counts,
        finish_reason=watch.finish_reason,
        sampling=watch.sampling,
        lane=lane if any(line.started is not None for line in watch.timelines) else None,
    )


def _milliseconds(
    phases: Iterable[tuple[float | None, float | None]], otherwise: float
) -> float | None:
    """The sum of what began; None if nothing did."""
    lengths = [
        (otherwise if end is None else end) - begin for begin, end in phases if begin is not None
    ]
    return round(sum(lengths) * 1000, 3) if lengths else None
