"""Metrics: counters that follow what requests used, and nothing of what they said."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import frozen

from caldrix_conformance.answers import Completion
from caldrix_conformance.contracts.caldrix.speculation import REPETITIVE, speculative_in
from caldrix_conformance.endpoints import COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.metrics import Metric, counters, read_lines, read_metrics
from caldrix_conformance.target import Target
from caldrix_conformance.waiting import eventually

PROMPT = "Once upon a time"
LENGTH = 8
WORD = "zyzzyvaxolotl"
"""Of no text but these cases'."""

UNDER_WAY = ("num_requests_running", "num_requests_waiting")


@frozen
class Look:
    """The metrics at one moment."""

    metrics: Mapping[str, Metric]

    def __getitem__(self, name: str) -> float:
        """The value of caldrix_<name>, which must be there."""
        value = self.value(name)
        assert value is not None, f"there is no sample of caldrix_{name}"
        return value

    def value(self, name: str) -> float | None:
        """The sum of the samples of caldrix_<name>, which may end in _sum or _count."""
        found = [
            sample.value
            for metric in self.metrics.values()
            for sample in metric.samples
            if sample.name == f"caldrix_{name}"
        ]
        return sum(found) if found else None

    def with_label(self, name: str, label: str, value: str) -> float:
        """The one sample of caldrix_<name> with that label, 0 where it isn't there yet."""
        metric = self.metrics.get(f"caldrix_{name}")
        assert metric is not None, f"there is no caldrix_{name}"
        return sum(one.value for one in metric.samples if one.labels.get(label) == value)


def look(target: Target) -> Look:
    return Look(read_metrics(read_lines(target.get("/metrics").expect(200).body)))


def own_counters(looked: Look) -> dict[str, float]:
    """The counters whose names are the contract's."""
    found = counters(looked.metrics)
    return {name: value for name, value in found.items() if name.startswith("caldrix_")}


def settled(target: Target) -> Look:
    """The metrics once our counters stand still; a process's own, of its CPU time, never do."""
    last: list[dict[str, float]] = []

    def stands_still() -> bool:
        last.append(own_counters(look(target)))
        return last[-2:-1] == last[-1:]

    assert eventually(stands_still), "the counters go on rising while no request is made"
    return look(target)


def at_rest(target: Target) -> Look:
    """The metrics before a request; another case may have left one that is still at work."""
    eventually(lambda: not any(map(look(target).value, UNDER_WAY)))
    return settled(target)


def settled_after(target: Target, before: Look) -> Look:
    """The metrics after an answer, whose counts may come after its last byte."""
    counted = own_counters(before)
    eventually(lambda: own_counters(look(target)) != counted)
    return settled(target)


@frozen
class Grown:
    """The metrics around one request."""

    before: Look
    after: Look
    seconds: float
    answer: Completion

    def by(self, name: str) -> float:
        """By how much caldrix_<name> grew."""
        return self.after[name] - self.before[name]

    def expect(self, name: str, wanted: float) -> None:
        """Check that growth."""
        seen = self.by(name)
        assert seen == wanted, f"caldrix_{name} grew by {seen:g}, not by {wanted:g}"


def around(target: Target, endpoint: Endpoint, **fields: Any) -> Grown:
    """Ask, and look at the metrics before and after."""
    before = at_rest(target)
    began = time.monotonic()
    answer = target.complete(endpoint, **{"max_tokens": LENGTH, **fields})
    seconds = time.monotonic() - began
    return Grown(before, settled_after(target, before), seconds, answer)


@pytest.fixture(scope="session")
def grown(target: Target, some_endpoint: Endpoint) -> Grown:
    """The metrics around an answer of several tokens."""
    return around(target, some_endpoint, **some_endpoint.prompt(PROMPT))


@checks("metrics.counts.prompt")
def test_prompt_tokens(grown: Grown) -> None:
    grown.expect("prompt_tokens_total", grown.answer.usage.prompt_tokens)


@checks("metrics.counts.generation")
def test_generation_tokens(grown: Grown) -> None:
    grown.expect("generation_tokens_total", grown.answer.usage.completion_tokens)


@checks("metrics.counts.success")
def test_success(grown: Grown) -> None:
    reason = grown.answer.finish_reason
    before, after = (
        one.with_label("request_success_total", "finish_reason", reason)
        for one in (grown.before, grown.after)
    )
    assert after == before + 1, f"the answers that ended in {reason} were {before}, then {after}"
    grown.expect("request_success_total", 1)


@checks("metrics.counts.latency")
@pytest.mark.parametrize(
    "name", ["e2e_request_latency", "request_queue_time", "time_to_first_token"]
)
def test_latency(grown: Grown, name: str) -> None:
    grown.expect(f"{name}_seconds_count", 1)
    added = grown.by(f"{name}_seconds_sum")
    assert 0 <= added <= grown.seconds, f"{added} s for an answer that took {grown.seconds:.3f} s"


@checks("metrics.counts.per-token")
def test_per_token(grown: Grown) -> None:
    count, added = (grown.by(f"time_per_output_token_seconds_{part}") for part in ("count", "sum"))
    assert count > 0, "an answer of several tokens adds no time for each"
    assert 0 <= added <= grown.seconds, f"{added} s for an answer that took {grown.seconds:.3f} s"


@checks("metrics.counts.cached")
def test_cached(grown: Grown) -> None:
    grown.expect("prefix_cache_queries_total", grown.answer.usage.prompt_tokens)
    hits, queries = (grown.after[f"prefix_cache_{name}_total"] for name in ("hits", "queries"))
    assert hits <= queries, f"{hits:g} tokens found of {queries:g} looked up"


@checks("metrics.counts.streamed")
def test_streamed(target: Target, some_endpoint: Endpoint) -> None:
    before = at_rest(target)
    options = {"include_usage": True}
    streamed = target.stream(
        some_endpoint,
        **some_endpoint.prompt(PROMPT),
        max_tokens=LENGTH,
        stream_options=options,
    )
    usage, after = streamed.usage, settled_after(target, before)
    for name, wanted in (
        ("prompt_tokens_total", usage.prompt_tokens),
        ("generation_tokens_total", usage.completion_tokens),
        ("request_success_total", 1),
    ):
        seen = after[name] - before[name]
        assert seen == wanted, f"caldrix_{name} grew by {seen:g}, not by {wanted:g}"


@checks("metrics.counts.refused")
def test_refused(target: Target, some_endpoint: Endpoint) -> None:
    before = at_rest(target)
    target.ask(some_endpoint, temperature=-1).expect(400)
    after = settled(target)
    for name in ("prompt_tokens_total", "generation_tokens_total", "request_success_total"):
        grew = after[name] - before[name]
        assert grew == 0, f"a refused request adds {grew:g} to caldrix_{name}"


@checks("metrics.counts.speculative")
def test_speculative(target: Target) -> None:
    grown = around(target, COMPLETIONS, prompt=REPETITIVE, max_tokens=24)
    counts = speculative_in(grown.answer)
    grown.expect("spec_decode_num_draft_tokens_total", counts["proposed"])
    grown.expect("spec_decode_num_accepted_tokens_total", counts["accepted"])


@checks("metrics.counters.grow")
def test_never_fall(grown: Grown) -> None:
    before, after = counters(grown.before.metrics), counters(grown.after.metrics)
    for name, value in before.items():
        now = after.get(name)
        assert now is not None, f"{name} is gone"
        assert now >= value, f"{name} fell from {value:g} to {now:g}"


@checks("metrics.gauges.idle")
@pytest.mark.parametrize("name", UNDER_WAY)
def test_idle(target: Target, name: str) -> None:
    assert eventually(lambda: look(target)[name] == 0), (
        f"caldrix_{name} is {look(target)[name]:g} while no request is made"
    )


@checks("metrics.gauges.ratio")
def test_ratio(grown: Grown) -> None:
    seen = grown.after["kv_cache_usage_ratio"]
    assert 0 <= seen <= 1, f"caldrix_kv_cache_usage_ratio is {seen}"


@checks("metrics.text.never")
def test_no_text(target: Target, some_endpoint: Endpoint) -> None:
    prompt = some_endpoint.prompt(f"{WORD} {PROMPT}")
    answer = target.complete(some_endpoint, **prompt, max_tokens=LENGTH, user=f"{WORD}-user")
    settled(target)
    page = target.get("/metrics").expect(200).body.decode("utf-8", "replace")
    assert WORD not in page, f"the metrics hold {WORD!r} of the prompt"
    text = answer.text.strip()
    assert len(text) < 8 or text not in page, f"the metrics hold the answer {text!r}"
