"""Metrics in a text that no scraper reads, under other names, or counted wrongly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from attrs import define, field

from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.server import Json
from tests.mutants.toy.speculation import SpeculatingToy
from tests.mutants.toy.telemetry import COUNTERS, GAUGES, HISTOGRAMS, ObservedToy, Watch

Lines = list[str]


class Rewriting(ObservedToy):
    """Sends another page than the right one."""

    def rewrite(self, lines: Lines) -> Lines:
        raise NotImplementedError

    def metrics(self) -> Iterator[str]:
        return iter(self.rewrite(list(super().metrics())))


def _rewriting(name: str, rewrite: Callable[[Lines], Lines], *clause_ids: str) -> None:
    def method(toy: ObservedToy, lines: Lines) -> Lines:
        return rewrite(lines)

    FAULTS[type(name, (Rewriting,), {"rewrite": method})] = frozenset(clause_ids)


def _replacing(old: str, new: str) -> Callable[[Lines], Lines]:
    return lambda lines: [re.sub(old, new, line) for line in lines]


def _adding(*more: str) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines, *more]


UNREADABLE = frozenset(
    {
        "metrics.format.lines",
        "metrics.format.once",
        "metrics.format.grouped",
        "metrics.format.unique",
        "metrics.format.histograms",
        "metrics.format.help",
        "metrics.counters.finite",
        "metrics.counters.grow",
        "metrics.counters.named",
        "metrics.gauges.idle",
        "metrics.gauges.ratio",
        *(f"metrics.counts.{what}" for what in ("prompt", "generation", "success", "streamed")),
        *(f"metrics.counts.{what}" for what in ("refused", "latency", "per-token", "cached")),
        "metrics.text.never",
        *(f"metrics.name.{name.replace('_', '-')}" for name in (*GAUGES, *HISTOGRAMS)),
        *(f"metrics.name.{name.replace('_', '-')}" for name in COUNTERS if "spec" not in name),
        "metrics.name.request-success-total",
    }
)
"""What can't be judged of a page that can't be read."""

_rewriting("WritesCommas", _replacing(r"_ratio 0$", "_ratio 0,0"), *UNREADABLE)

_rewriting(
    "TypesTwice",
    _replacing("(# TYPE .*_ratio .*)", r"\1\n\1"),
    "metrics.format.once",
)
_rewriting(
    "TypesTooLate",
    lambda lines: sorted(lines, key=lambda line: line.startswith("# TYPE caldrix_kv")),
    "metrics.format.once",
    "metrics.format.grouped",
)
_rewriting(
    "SortsItsLines",
    lambda lines: sorted(lines, key=lambda line: (not line.startswith("#"), line)),
    "metrics.format.grouped",
)
_rewriting(
    "CountsInTwoLines",
    _replacing("^(caldrix_prefix_cache_hits_total .*)", r"\1\n\1"),
    "metrics.format.unique",
)
_rewriting("BucketsApart", _replacing(r'le="\+Inf"', 'le="20"'), "metrics.format.histograms")
_rewriting(
    "HasNoSums",
    _replacing("^caldrix_request_queue_time_seconds_sum .*", ""),
    "metrics.format.histograms",
    "metrics.counts.latency",
)
_rewriting("HasNoHelp", _replacing("^# HELP .*", ""), "metrics.format.help")
_rewriting(
    "CountsBelowZero",
    _replacing("^(caldrix_prefix_cache_hits_total) .*", r"\1 -1"),
    "metrics.counters.finite",
)
_rewriting(
    "NamesCountersShort",
    _adding("# HELP caldrix_steps Steps.", "# TYPE caldrix_steps counter", "caldrix_steps 1"),
    "metrics.counters.named",
)
_rewriting("ThinksItRuns", _replacing("(running) 0", r"\1 1"), "metrics.gauges.idle")
_rewriting("CountsInPercent", _replacing("(ratio) 0", r"\1 12.5"), "metrics.gauges.ratio")
_rewriting(
    "FindsMoreThanItLooksFor",
    _replacing("^(caldrix_prefix_cache_hits_total) .*", r"\1 1e9"),
    "metrics.counts.cached",
)


def _renaming(name: str, *clause_ids: str) -> None:
    """A server whose metric of that name has another, and so breaks what is said of it."""
    own = f"metrics.name.{name.replace('_', '-')}"
    new = re.sub("_total$", "s_total", name) if name.endswith("_total") else f"{name}_now"
    rewrite = _replacing(f"caldrix_{name}", f"caldrix_{new}")
    _rewriting(f"Renames_{name}", rewrite, own, *clause_ids)


_renaming("num_requests_running", "metrics.gauges.idle")
_renaming("num_requests_waiting", "metrics.gauges.idle")
_renaming("kv_cache_usage_ratio", "metrics.gauges.ratio")
_renaming(
    "prompt_tokens_total",
    *(f"metrics.counts.{what}" for what in ("prompt", "streamed", "refused")),
)
_renaming(
    "generation_tokens_total",
    *(f"metrics.counts.{what}" for what in ("generation", "streamed", "refused")),
)
_renaming(
    "request_success_total",
    *(f"metrics.counts.{what}" for what in ("success", "streamed", "refused")),
)
_renaming("prefix_cache_queries_total", "metrics.counts.cached")
_renaming("prefix_cache_hits_total", "metrics.counts.cached")
_renaming("time_to_first_token_seconds", "metrics.counts.latency")
_renaming("e2e_request_latency_seconds", "metrics.counts.latency")
_renaming("request_queue_time_seconds", "metrics.counts.latency")
_renaming("time_per_output_token_seconds", "metrics.counts.per-token")


@breaks(
    "metrics.name.spec-decode-num-draft-tokens-total",
    "metrics.name.spec-decode-num-accepted-tokens-total",
    "metrics.counts.speculative",
)
class NamesGuessesOtherwise(SpeculatingToy):
    def metrics(self) -> Iterator[str]:
        return (line.replace("spec_decode", "speculation") for line in super().metrics())


@breaks("metrics.counts.speculative")
class CountsAGuessLess(SpeculatingToy):
    def count(self, watch: Watch) -> None:
        super().count(watch)
        self.counts["spec_decode_num_draft_tokens_total"] -= "speculative" in watch.usage


@breaks("metrics.media-type", "metrics.version")
class SendsMetricsAsJson(ObservedToy):
    def media_type(self, path: str) -> str:
        return "application/json" if path == "/metrics" else super().media_type(path)


@breaks("metrics.version")
class TellsNoVersion(ObservedToy):
    def media_type(self, path: str) -> str:
        return "text/plain"


@breaks("metrics.format.end")
class EndsInALine(ObservedToy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        return answer.rstrip() if path == "/metrics" and isinstance(answer, str) else answer


def _counting(clause_ids: set[str], name: str, more: int) -> None:
    """A server that adds ``more`` to a counter at each answer."""

    class Counting(ObservedToy):
        def count(self, watch: Watch) -> None:
            super().count(watch)
            self.counts[name] += more

    Counting.__name__ = f"Miscounts_{name}"
    FAULTS[Counting] = frozenset(clause_ids)


_counting({"metrics.counts.prompt", "metrics.counts.streamed"}, "prompt_tokens_total", 1)
_counting({"metrics.counts.generation", "metrics.counts.streamed"}, "generation_tokens_total", -1)
_counting({"metrics.counts.cached"}, "prefix_cache_queries_total", 1)


@breaks("metrics.counts.success")
class CallsAllEndsStop(ObservedToy):
    def count(self, watch: Watch) -> None:
        watch.reason = "stop"
        super().count(watch)


@breaks("metrics.counts.streamed")
class CountsWholeAnswers(ObservedToy):
    def count(self, watch: Watch) -> None:
        if not watch.body.get("stream"):
            super().count(watch)


@breaks("metrics.counts.refused")
class CountsRefusedRequests(ObservedToy):
    def keep(self, watch: Watch, status: int) -> None:
        super().keep(watch, status)
        if status == 400:
            self.reasons["error"] += 1


def _timing(clause_id: str, name: str, factor: float) -> None:
    """A server that measures some times in another unit."""

    class Timing(ObservedToy):
        def count(self, watch: Watch) -> None:
            known = len(self.times[name])
            super().count(watch)
            times = self.times[name]
            times[known:] = [one * factor for one in times[known:]]

    Timing.__name__ = f"Times_{name}_in_milliseconds"
    FAULTS[Timing] = frozenset({clause_id})


_timing("metrics.counts.latency", "e2e_request_latency_seconds", 1000)
_timing("metrics.counts.per-token", "time_per_output_token_seconds", 1000)


@breaks("metrics.counters.grow")
class ForgetsItsPeak(ObservedToy):
    def metrics(self) -> Iterator[str]:
        yield from super().metrics()
        falling = 1_000_000 - sum(self.counts.values())
        yield from self.metric("left_total", "counter", "What is left.", {"": falling})


@breaks("metrics.text.never")
@define
class LabelsWithPrompts(ObservedToy):
    prompts: set[str] = field(factory=set)

    def count(self, watch: Watch) -> None:
        super().count(watch)
        words = re.sub("[^a-z ]", "", str(watch.body.get("prompt")))
        self.prompts = {words}

    def metrics(self) -> Iterator[str]:
        yield from super().metrics()
        labelled = {f'{{prompt="{words}"}}': 1 for words in self.prompts}
        yield from self.metric("prompts", "gauge", "Prompts.", labelled)
