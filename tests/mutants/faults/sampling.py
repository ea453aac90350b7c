"""Sampling fields without effect, or with one that nobody asked for."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.model import Sampling
from tests.mutants.toy.server import Json, Toy


@breaks("sampling.default.greedy")
class SamplesByDefault(Toy):
    def sampling(self, body: Json) -> Sampling:
        hot = body.get("temperature") is None
        return evolve(super().sampling(body), **({"temperature": 1} if hot else {}))


@breaks("sampling.seed.same", "sampling.seed.streamed", "sampling.endpoints", "sampling.top-k.all")
class IgnoresTheSeed(Toy):
    def sampling(self, body: Json) -> Sampling:
        return evolve(super().sampling(body), seed=None)


@breaks("sampling.seed.fresh")
class AlwaysDrawsTheSame(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, seed=sampling.seed or 1)


@breaks("sampling.top-k.all")
class KeepsFewByDefault(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, top_k=sampling.top_k or 2)


@breaks("sampling.temperature.spreads", "sampling.seed.fresh", "sampling.endpoints")
class AlwaysGreedy(Toy):
    def sampling(self, body: Json) -> Sampling:
        return evolve(super().sampling(body), temperature=0)


def _ignoring(field: str, **value: Any) -> type[Toy]:
    class Ignoring(Toy):
        def sampling(self, body: Json) -> Sampling:
            return evolve(super().sampling(body), **value)

    Ignoring.__name__ = f"Ignores_{field}"
    return Ignoring


FAULTS |= {
    _ignoring("top_k", top_k=0): frozenset({"sampling.top-k.one"}),
    _ignoring("top_p", top_p=1): frozenset({"sampling.top-p.least"}),
    _ignoring("min_p", min_p=0): frozenset({"sampling.min-p.one"}),
    _ignoring("penalty", repetition_penalty=1): frozenset({"sampling.repetition-penalty.acts"}),
}
