"""Frequencies of rotary position embeddings, with the scalings that checkpoints ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from caldrix.models.fields import Fields, UnsupportedModel


def base_frequencies(theta: float, dimensions: int) -> tuple[float, ...]:
    """``theta ** (-2j / dimensions)`` for each pair ``j`` (Su et al., 2021), radians a position."""
    return tuple(theta ** (-2 * pair / dimensions) for pair in range(dimensions // 2))


@frozen
class Llama3Scaling:
    """The scaling of Llama 3.1: slow pairs are stretched, fast ones kept, those between blended.

    Formula: the ``llama3`` rope type as its model card and transformers' documentation give it.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: float

    def apply(self, frequencies: Sequence[float]) -> tuple[float, ...]:
        """The frequencies, scaled."""
        return tuple(self._scaled(frequency) for frequency in frequencies)

    def _scaled(self, frequency: float) -> float:
        turns = self.original_context * frequency / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = min(1.0, max(0.0, kept))
        return kept * frequency + (1 - kept) * frequency / self.factor


def frequencies_from_config(
    config: Fields, dimensions: int, *, theta: float = 10_000.0
) -> tuple[float, ...]:
    """What config.json says: ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``.

    ``theta`` is the family's own default.
    """
    if "rope_parameters" in config:
        return scaled_frequencies(config.section("rope_parameters"), dimensions, theta=theta)
    theta = config.number("rope_theta", theta)
    if "rope_scaling" in config:
        return scaled_frequencies(config.section("rope_scaling"), dimensions, theta=theta)
    return base_frequencies(theta, dimensions)


def scaled_frequencies(parameters: Fields, dimensions: int, *, theta: float) -> tuple[float, ...]:
    """Frequencies from one set of rope parameters; ``theta`` where they don't name their own."""
    parameters.require("partial_rotary_factor", 1, 1.0)
    frequencies = base_frequencies(parameters.number("rope_theta", theta), dimensions)
    kind = parameters.text("rope_type" if "rope_type" in parameters else "type", "default")
    match kind:
        case "default":
            return frequencies
        case "linear":
            factor = parameters.number("factor")
            return tuple(frequency / factor for frequency in frequencies)
        case "llama3":
            return Llama3Scaling(
                parameters.number("factor"),
                parameters.number("low_freq_factor"),
                parameters.number("high_freq_factor"),
                parameters.number("original_max_position_embeddings"),
            ).apply(frequencies)
        case _:
            raise UnsupportedModel(f"{parameters.where}: rope type {kind!r} is not supported")


def frequencies_from_gguf(
    metadata: Fields, dimensions: int, factors: Sequence[float] | None, *, theta: float = 10_000.0
) -> tuple[float, ...]:
    """What GGUF metadata says; ``factors`` are the divisors of ``rope_freqs.weight``, if any."""
    metadata.require("rope.dimension_count", dimensions)
    kind = metadata.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{metadata.where}: rope scaling {kind!r} is not supported")
    factor = metadata.number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    frequencies = base_frequencies(metadata.number("rope.freq_base", theta), dimensions)
    if factors is None:
        return tuple(frequency / factor for frequency in frequencies)
    if len(factors) != len(frequencies):
        raise UnsupportedModel(
            f"{metadata.where}: rope_freqs.weight has {len(factors)} values, "
            f"{len(frequencies)} are needed"
        )
    return tuple(
        frequency / factor / divisor
        for frequency, divisor in zip(frequencies, factors, strict=True)
    )
