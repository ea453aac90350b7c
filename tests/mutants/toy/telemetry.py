"""A toy that keeps records of its requests, and counts what they used."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from attrs import asdict, define, field

from caldrix_conformance.capabilities import Capability
from tests.mutants.toy.model import Sampling
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, COMPLETIONS, Json, Toy, right

BOUNDS = ("0.001", "0.1", "10", "+Inf")
GAUGES = {
    "num_requests_running": "Requests being answered.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_ratio": "Share of the key-value cache in use.",
}
COUNTERS = {
    "prompt_tokens_total": "Tokens of prompts.",
    "generation_tokens_total": "Tokens of answers.",
    "prefix_cache_queries_total": "Prompt tokens looked up.",
    "prefix_cache_hits_total": "Prompt tokens found.",
    "spec_decode_num_draft_tokens_total": "Tokens proposed.",
    "spec_decode_num_accepted_tokens_total": "Tokens accepted.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "Times to the first token.",
    "time_per_output_token_seconds": "Times of each later token.",
    "e2e_request_latency_seconds": "Times of whole requests.",
    "request_queue_time_seconds": "Times in the queue.",
}


@define
class Watch:
    """What is known of a request while it is answered."""

    path: str
    body: Json
    sampling: Sampling | None = None
    began: float = field(factory=time.monotonic)
    received: float = field(factory=time.time)
    chunk: Json = field(factory=dict)
    reason: str | None = None
    usage: Json = field(factory=dict)

    def see(self, answer: Json) -> None:
        """Note what an answer or a chunk says."""
        self.chunk = answer
        self.usage = answer.get("usage") or self.usage
        for choice in answer["choices"]:
            self.reason = choice["finish_reason"] or self.reason


@right
@define
class ObservedToy(Toy):
    """Metrics and records, of any request to a generating endpoint."""

    lacks: ClassVar[frozenset[Capability]] = Toy.lacks - {
        Capability.METRICS,
        Capability.TELEMETRY,
    }

    records: deque[Json] = field(factory=lambda: deque(maxlen=256))
    running: set[int] = field(factory=set)
    counts: Counter[str] = field(factory=Counter)
    reasons: Counter[str] = field(factory=Counter)
    times: dict[str, list[float]] = field(factory=lambda: {name: [] for name in HISTOGRAMS})

    def post(self, path: str, body: Json) -> Json | str | Iterator[str]:
        if path not in (CHAT, COMPLETIONS):
            return super().post(path, body)
        watch = Watch(path, body)
        with self.watching(watch):
            self.check(path, body)
            body = self.seeded(body)
            watch.sampling = self.sampling(body)
            if not body.get("stream"):
                answer = super().post(path, body)
                assert isinstance(answer, dict)
                watch.see(answer)
                self.keep(watch, 200)
                return answer
        return self.watched(watch, self.asked_events(path, body))

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """While this is open the request is under way; a refusal is kept."""
        self.running.add(id(watch))
        try:
            yield
        except Refused as refused:
            self.keep(watch, refused.status)
            raise
        finally:
            self.running.discard(id(watch))

    def seeded(self, body: Json) -> Json:
        """The request with the seed that it will use."""
        drawn = body.get("seed") in (None, -1) and self.sampling(body).temperature > 0
        return body | {"seed": self.draw()} if drawn else body

    def draw(self) -> int:
        return random.getrandbits(32)

    def asked_events(self, path: str, body: Json) -> Iterator[str]:
        options = (body.get("stream_options") or {}) | {"include_usage": True}
        return self.events(path, body | {"stream_options": options})

    def watched(self, watch: Watch, events: Iterator[str]) -> Iterator[str]:
        """The events, without the usage that wasn't asked for."""
        wanted = (watch.body.get("stream_options") or {}).get("include_usage")
        with self.watching(watch):
            for event in events:
                if event == "[DONE]":
                    self.keep(watch, 200)
                else:
                    watch.see(json.loads(event))
                    if watch.chunk.get("usage") and not wanted:
                        continue
                yield event

    def keep(self, watch: Watch, status: int) -> None:
        self.records.appendleft(self.record(watch, status))
        if status == 200:
            self.count(watch)

    def record(self, watch: Watch, status: int) -> Json:
        ended = time.monotonic()
        refused = status >= 400
        decode = None if refused else (ended - watch.began) * 500
        return {
            "id": watch.chunk.get("id"),
            "route": watch.path,
            "received": watch.received,
            "queue_ms": None if refused else 0.0,
            "prefill_ms": decode,
            "decode_ms": decode,
            "prompt_tokens": watch.usage.get("prompt_tokens"),
            "completion_tokens": watch.usage.get("completion_tokens"),
            "cached_tokens": None if refused else self.cached(watch),
            "finish_reason": watch.reason,
            "status": status,
            "sampling": self.settings(watch),
            "speculative": watch.usage.get("speculative"),
            "lane": "toy",
        }

    def settings(self, watch: Watch) -> Json | None:
        """The settings used, with a seed only where one was."""
        if watch.sampling is None:
            return None
        settings = asdict(watch.sampling)
        return settings if watch.sampling.temperature else settings | {"seed": None}

    def cached(self, watch: Watch) -> int:
        """How many tokens of a prompt come from a kept row; this toy keeps none."""
        return 0

    def count(self, watch: Watch) -> None:
        usage, took = watch.usage, time.monotonic() - watch.began
        guesses = usage.get("speculative") or {}
        self.counts.update(
            {
                "prompt_tokens_total": usage["prompt_tokens"],
                "generation_tokens_total": usage["completion_tokens"],
                "prefix_cache_queries_total": usage["prompt_tokens"],
                "prefix_cache_hits_total": self.cached(watch),
                "spec_decode_num_draft_tokens_total": guesses.get("proposed", 0),
                "spec_decode_num_accepted_tokens_total": guesses.get("accepted", 0),
            }
        )
        self.reasons[str(watch.reason)] += 1
        later = max(usage["completion_tokens"] - 1, 0)
        self.times["e2e_request_latency_seconds"].append(took)
        self.times["time_to_first_token_seconds"].append(took / 2)
        self.times["request_queue_time_seconds"].append(0.0)
        self.times["time_per_output_token_seconds"] += [took / 2 / max(later, 1)] * later

    def get(self, path: str) -> Json | str:
        if path == "/debug/requests":
            return {"requests": list(self.records)}
        if path == "/metrics":
            return "".join(f"{line}\n" for line in self.metrics())
        return super().get(path)

    def media_type(self, path: str) -> str:
        if path == "/metrics":
            return "text/plain; version=0.0.4; charset=utf-8"
        return super().media_type(path)

    def metrics(self) -> Iterator[str]:
        gauges = {"num_requests_running": len(self.running)}
        for name, text in GAUGES.items():
            yield from self.metric(name, "gauge", text, {"": gauges.get(name, 0)})
        for name, text in COUNTERS.items():
            yield from self.metric(name, "counter", text, {"": self.counts[name]})
        answered = {f'{{finish_reason="{reason}"}}': n for reason, n in self.reasons.items()}
        yield from self.metric("request_success_total", "counter", "Answers.", answered)
        for name, text in HISTOGRAMS.items():
            yield from self.metric(name, "histogram", text, self.buckets(self.times[name]))

    def metric(self, name: str, kind: str, text: str, values: dict[str, Any]) -> Iterator[str]:
        """The lines of one metric; ``values`` by what stands behind its name."""
        yield f"# HELP caldrix_{name} {text}"
        yield f"# TYPE caldrix_{name} {kind}"
        for rest, value in values.items():
            yield f"caldrix_{name}{rest} {value}"

    def buckets(self, times: list[float]) -> dict[str, Any]:
        buckets = {
            f'_bucket{{le="{bound}"}}': sum(one <= float(bound) for one in times)
            for bound in BOUNDS
        }
        return buckets | {"_sum": sum(times), "_count": len(times)}
