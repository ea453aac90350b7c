"""Sampling fields without effect, or with one that nobody asked for."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.model import TOKENS, Sampling
from tests.mutants.toy.server import CHAT, Json, Toy


@breaks("sampling.default.greedy")
class SamplesMessagesByDefault(Toy):
    """On both endpoints it would be what a server's flags may ask for."""

    def post(self, path: str, body: Json) -> Any:
        hot = path == CHAT and body.get("temperature") is None
        return super().post(path, body | ({"temperature": 1} if hot else {}))


@breaks(
    "sampling.seed.same",
    "sampling.seed.streamed",
    "sampling.endpoints",
    "sampling.top-k.all",
    "sampling.default.values",
)
class IgnoresTheSeed(Toy):
    def sampling(self, body: Json) -> Sampling:
        return evolve(super().sampling(body), seed=None)


@breaks("sampling.seed.fresh")
class AlwaysDrawsTheSame(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, seed=sampling.seed or 1)


@breaks("sampling.top-k.all", "sampling.default.values")
class KeepsFewByDefault(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, top_k=sampling.top_k or 2)


@breaks(
    "sampling.temperature.spreads",
    "sampling.seed.fresh",
    "sampling.seed.whole",
    "sampling.endpoints",
    "sampling.top-k.keeps",
    "sampling.min-p.cuts",
)
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
    _ignoring("top_k", top_k=0): frozenset(
        {"sampling.top-k.one", "sampling.top-k.keeps", "sampling.order.penalty"}
    ),
    _ignoring("top_p", top_p=1): frozenset({"sampling.top-p.least", "sampling.order.temperature"}),
    _ignoring("min_p", min_p=0): frozenset(
        {"sampling.min-p.one", "sampling.min-p.cuts", "sampling.order.temperature"}
    ),
    _ignoring("penalty", repetition_penalty=1): frozenset({"sampling.repetition-penalty.acts"}),
}


@breaks("sampling.default.null")
class NullIsHot(Toy):
    def sampling(self, body: Json) -> Sampling:
        hot = body.get("temperature", 0) is None
        return evolve(super().sampling(body), **({"temperature": 2} if hot else {}))


@breaks("sampling.temperature.zero")
class SeedsMakeItDraw(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        drawn = sampling.temperature == 0 and sampling.seed == 7
        return evolve(sampling, temperature=2) if drawn else sampling


@breaks("sampling.repetition-penalty.one", "sampling.default.values", "sampling.default.null")
class PenalizesByOne(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        named = "repetition_penalty" in body and sampling.repetition_penalty == 1
        return evolve(sampling, repetition_penalty=3) if named else sampling


@breaks("sampling.top-k.keeps")
class KeepsOneMore(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, top_k=sampling.top_k + (sampling.top_k == 2))


@breaks("sampling.order.penalty")
class PenalizesWhatIsLeft(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, repetition_penalty=1) if sampling.top_k == 1 else sampling


@breaks("sampling.order.temperature")
class CutsAfterTheTemperature(Toy):
    """A flat temperature leaves the cuts nothing to tell the tokens apart by."""

    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        flat = sampling.temperature > 1000 and sampling.top_k == 0
        if not flat or sampling.min_p == 0.9:
            return sampling
        top_k = int(len(TOKENS) * sampling.top_p)
        return evolve(sampling, top_k=top_k, top_p=1, min_p=0)


@breaks("sampling.seed.whole")
class KeepsHalfOfASeed(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return sampling if sampling.seed is None else evolve(sampling, seed=sampling.seed % 2**32)
