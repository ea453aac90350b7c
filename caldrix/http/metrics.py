"""Metrics in Prometheus' text format, named after vLLM's.

Counters and histograms grow when a request ends, by the figures of its usage; gauges are read from
the engine when somebody asks. Each server has a registry of its own, so that several in one process
don't add up.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric

from caldrix.engine.engine import Engine, FinishReason
from caldrix.http.watch import RequestWatch

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_TOKEN_SECONDS = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0)
_WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WHOLE_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class _Registry(CollectorRegistry):
    """Without the samples that say since when each series exists, which the text format lacks."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = _Registry()
        self._running = self._gauge("num_requests_running", "Requests being computed.")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue.")
        self._kv_cache_usage = self._gauge(
            "kv_cache_usage_ratio",
            "Share of the key-value cache that running requests use, 0 to 1.",
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self._prefix_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up among the rows kept."
        )
        self._prefix_hits = self._counter(
            "prefix_cache_hits", "Prompt tokens found there, and not computed again."
        )
        self._draft_tokens = self._counter(
            "spec_decode_num_draft_tokens", "Tokens guessed ahead and proposed to the model."
        )
        self._accepted_tokens = self._counter(
            "spec_decode_num_accepted_tokens", "Proposed tokens that the model gives as well."
        )
        self._success = self._counter(
            "request_success", "Requests answered to their end.", ["finish_reason"]
        )
        for reason in FinishReason:
            self._success.labels(reason.value)
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its answer's first token.",
            _WAIT_SECONDS,
        )
        self.time_per_output_token = self._histogram(
            "time_per_output_token_seconds",
            "Of each token after a sequence's first.",
            _TOKEN_SECONDS,
        )
        """The engine's to fill, a token at a time."""
        self._latency = self._histogram(
            "e2e_request_latency_seconds",
            "From a request's arrival to its answer's end.",
            _WHOLE_SECONDS,
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "Of requests in the queue.", _WAIT_SECONDS
        )

    def count(self, watch: RequestWatch) -> None:
        """Adds a request that has ended; one that the engine never took adds nothing."""
        counts = watch.counts
        if counts is None:
            return
        whole = [
            computed
            for computed in watch.computed
            # Only then its prompt was computed to the end.
            if computed.timeline.first_token is not None or watch.finish_reason is not None
        ]
        prompts = sum(computed.prompt_tokens for computed in whole) - watch.left_out
        self._prompt_tokens.inc(prompts)
        self._prefix_queries.inc(prompts)
        hits = sum(computed.timeline.cached_tokens for computed in whole) - watch.left_out
        self._prefix_hits.inc(hits)
        self._generation_tokens.inc(counts.completion)
        self._draft_tokens.inc(counts.proposed)
        self._accepted_tokens.inc(counts.accepted)
        if watch.status == 200:
            self._count_answer(watch)

    def exposition(self, engine: Engine) -> bytes:
        """All of it as text, of type `CONTENT_TYPE`."""
        self._running.set(engine.running)
        self._waiting.set(engine.waiting)
        self._kv_cache_usage.set(engine.kv_cache_usage)
        return generate_latest(self._registry)

    def _count_answer(self, watch: RequestWatch) -> None:
        assert watch.ended is not None
        self._success.labels(watch.finish_reason).inc()
        self._latency.observe(watch.ended - watch.began)
        waits = [
            computed.timeline.started - computed.timeline.submitted
            for computed in watch.computed
            if computed.timeline.started is not None
        ]
        self._queue_time.observe(sum(waits))
        if watch.generation is not None:
            # An answer without a token is known to be one when its first would have come.
            first = watch.generation.timeline.first_token or watch.ended
            self._first_token.observe(first - watch.began)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"caldrix_{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(f"caldrix_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"caldrix_{name}", text, registry=self._registry, buckets=buckets)
