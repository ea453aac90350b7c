"""Metrics as a text: what a scraper reads of it, and the names that it finds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.metrics import (
    Comment,
    Line,
    Metric,
    Sample,
    counters,
    metric_of,
    read_lines,
    read_metrics,
)
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

NAMES = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_ratio": "gauge",
    "prompt_tokens_total": "counter",
    "generation_tokens_total": "counter",
    "prefix_cache_queries_total": "counter",
    "prefix_cache_hits_total": "counter",
    "request_success_total": "counter",
    "time_to_first_token_seconds": "histogram",
    "time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "spec_decode_num_draft_tokens_total": "counter",
    "spec_decode_num_accepted_tokens_total": "counter",
}
"""Without their common beginning, caldrix_."""


@pytest.fixture(scope="session")
def page(target: Target, some_endpoint: Endpoint) -> Answer:
    """The metrics after some requests."""
    target.complete(some_endpoint, max_tokens=2)
    return target.get("/metrics").expect(200)


@pytest.fixture(scope="session")
def lines(page: Answer) -> Sequence[Line]:
    return read_lines(page.body)


@pytest.fixture(scope="session")
def metrics(lines: Sequence[Line]) -> Mapping[str, Metric]:
    return read_metrics(lines)


@checks("metrics.media-type")
def test_media_type(page: Answer) -> None:
    seen = page.media_type
    assert seen == "text/plain", f"the media type is {seen!r}"


@checks("metrics.version")
def test_version(page: Answer) -> None:
    _, *parameters = page.headers.get("content-type", "").split(";")
    given = [one.strip() for one in parameters]
    assert {"version=0.0.4", "version=1.0.0"} & set(given), f"the parameters are {given}"


@checks("metrics.format.lines")
def test_lines(page: Answer) -> None:
    assert read_lines(page.body), "there are no metrics"


@checks("metrics.format.end")
def test_end(page: Answer) -> None:
    try:
        page.body.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"the text is not UTF-8 at byte {error.start}") from None
    assert page.body.endswith(b"\n"), f"the text ends in {page.body[-20:]!r}"


@checks("metrics.format.once")
def test_once(lines: Sequence[Line]) -> None:
    kinds = kinds_in(lines)
    seen: set[tuple[str, str]] = set()
    sampled: set[str] = set()
    for line in lines:
        name = metric_of(line, kinds)
        if isinstance(line, Sample):
            sampled.add(name)
            continue
        assert (line.keyword, name) not in seen, f"{name} has two lines of {line.keyword}"
        assert name not in sampled, f"the {line.keyword} of {name} stands behind its samples"
        seen.add((line.keyword, name))


def kinds_in(lines: Sequence[Line]) -> dict[str, str]:
    comments = (line for line in lines if isinstance(line, Comment))
    return {line.name: line.text for line in comments if line.keyword == "TYPE"}


@checks("metrics.format.grouped")
def test_grouped(lines: Sequence[Line]) -> None:
    kinds = kinds_in(lines)
    names = [name for name, _ in groupby(lines, lambda line: metric_of(line, kinds))]
    apart = {name for name in names if names.count(name) > 1}
    assert not apart, f"the lines of {', '.join(sorted(apart))} stand apart"


@checks("metrics.format.unique")
def test_unique(lines: Sequence[Line]) -> None:
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for line in lines:
        if isinstance(line, Sample):
            key = line.name, frozenset(line.labels.items())
            assert key not in seen, f"{line} comes twice"
            seen.add(key)


@checks("metrics.format.histograms")
def test_histograms(metrics: Mapping[str, Metric]) -> None:
    histograms = [metric for metric in metrics.values() if metric.kind == "histogram"]
    for histogram in histograms:
        for labels, buckets in series_of(histogram):
            expect_histogram(histogram, labels, buckets)


Series = tuple[dict[str, str], list[tuple[float, float]]]


def series_of(histogram: Metric) -> Iterator[Series]:
    """The labels and the buckets, as bounds and counts, of each series of a histogram."""
    series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for sample in histogram.of("_bucket"):
        labels = dict(sample.labels)
        bound = labels.pop("le", None)
        assert bound is not None, f"{sample} has no le"
        buckets = series.setdefault(frozenset(labels.items()), [])
        buckets.append((number(bound, str(sample)), sample.value))
    assert series, f"the histogram {histogram.name} has no buckets"
    for key, buckets in series.items():
        yield dict(key), sorted(buckets)


def number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AssertionError(f"{where} has the bound {text!r}") from None


def expect_histogram(
    histogram: Metric, labels: dict[str, str], buckets: list[tuple[float, float]]
) -> None:
    name = histogram.name
    counts = [count for _, count in buckets]
    assert counts == sorted(counts), f"the buckets of {name} fall: {counts}"
    assert buckets[-1][0] == math.inf, f"the last bucket of {name} is {buckets[-1][0]}"
    for ending in ("_sum", "_count"):
        values = [one.value for one in histogram.of(ending) if one.labels == labels]
        assert len(values) == 1, f"{name}{ending} comes {len(values)} times"
    assert values == counts[-1:], f"{name}_count is {values[0]}, its last bucket {counts[-1]}"


@checks("metrics.format.help")
def test_help(lines: Sequence[Line]) -> None:
    kinds = kinds_in(lines)
    for keyword in ("HELP", "TYPE"):
        named = {
            line.name for line in lines if isinstance(line, Comment) and line.keyword == keyword
        }
        missing = {metric_of(line, kinds) for line in lines} - named
        assert not missing, f"there is no {keyword} of {', '.join(sorted(missing))}"


@checks("metrics.counters.finite")
def test_finite(metrics: Mapping[str, Metric]) -> None:
    for name, value in counters(metrics).items():
        assert 0 <= value < math.inf, f"{name} is {value}"


@checks("metrics.counters.named")
def test_named(metrics: Mapping[str, Metric]) -> None:
    names = [metric.name for metric in metrics.values() if metric.kind == "counter"]
    others = [name for name in names if not name.endswith("_total")]
    assert not others, f"the counters {', '.join(others)} are named otherwise"


@pytest.mark.parametrize(
    ("name", "kind"),
    [row(f"metrics.name.{name.replace('_', '-')}", name, kind) for name, kind in NAMES.items()],
)
def test_name(metrics: Mapping[str, Metric], name: str, kind: str) -> None:
    metric = metrics.get(f"caldrix_{name}")
    assert metric is not None, f"there is no caldrix_{name}"
    assert metric.kind == kind, f"caldrix_{name} is a {metric.kind}"
