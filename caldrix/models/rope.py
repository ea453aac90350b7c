"""Frequencies of rotary position embeddings, with the scalings that checkpoints ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from caldrix.errors import quoted
from caldrix.models.fields import Fields, UnsupportedModel


def base_frequencies(theta: float, dimensions: int) -> tuple[float, ...]:
    """``theta ** (-2j / dimensions)`` for each pair ``j`` (Su et al., 2021), radians a position."""
    return tuple(theta ** (-2 * pair / dimensions) for pair in range(dimensions // 2))


def theta_of(fields: Fields, key: str, default: float) -> float:
    """A rope's base; below 1 the frequencies would grow without bound."""
    return fields.number(key, default, least=1.0)


@frozen
class Llama3Scaling:
    """The scaling of Llama 3.1: slow pairs are stretched, fast ones kept, those between blended.

    Formula: the ``llama3`` rope type as its model card and transformers' documentation give it.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: float

    @classmethod
    def from_config(cls, parameters: Fields) -> Llama3Scaling:
        """From one set of rope parameters."""
        low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
        if high <= low:
            raise UnsupportedModel(
                f"{parameters.where}: high_freq_factor {high:g} is not above "
                f"low_freq_factor {low:g}"
            )
        factor = parameters.number("factor", least=1.0)
        return cls(factor, low, high, parameters.number("original_max_position_embeddings"))

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
    theta = theta_of(config, "rope_theta", theta)
    if "rope_scaling" in config:
        return scaled_frequencies(config.section("rope_scaling"), dimensions, theta=theta)
    return base_frequencies(theta, dimensions)


def partial_frequencies(
    config: Fields, dimensions: int, *, factor: float, theta: float = 10_000.0
) -> tuple[float, ...]:
    """As `frequencies_from_config`, of the first ``partial_rotary_factor`` of the dimensions.

    ``factor`` is the family's default of that; both stand in ``rope_parameters`` or beside it.
    """
    beside = {
        "rope_theta": theta_of(config, "rope_theta", theta),
        "partial_rotary_factor": config.number("partial_rotary_factor", factor),
    }
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    parameters = config.section(key) if key in config else Fields(config.where, {})
    parameters = parameters.with_defaults(beside)
    turned = dimensions * parameters.number("partial_rotary_factor")
    if turned > dimensions or int(turned) < 2 or int(turned) % 2:
        raise UnsupportedModel(
            f"{parameters.where}: partial_rotary_factor would turn {turned:g} of {dimensions} "
            "dimensions, and it is pairs of them that turn"
        )
    return _scaled(parameters, int(turned), theta)


def scaled_frequencies(parameters: Fields, dimensions: int, *, theta: float) -> tuple[float, ...]:
    """Frequencies from one set of rope parameters; ``theta`` where they don't name their own."""
    parameters.require("partial_rotary_factor", 1, 1.0)
    return _scaled(parameters, dimensions, theta)


def _scaled(parameters: Fields, dimensions: int, theta: float) -> tuple[float, ...]:
    """Those of a rope that turns so many dimensions, scaled as the parameters say."""
    frequencies = base_frequencies(theta_of(parameters, "rope_theta", theta), dimensions)
    kind = parameters.text("rope_type" if "rope_type" in parameters else "type", "default")
    match kind:
        case "default":
            return frequencies
        case "linear":
            factor = parameters.number("factor", least=1.0)
            return tuple(frequency / factor for frequency in frequencies)
        case "llama3":
            return Llama3Scaling.from_config(parameters).apply(frequencies)
        case _:
            raise UnsupportedModel(f"{parameters.where}: rope type {quoted(kind)} is not supported")


def frequencies_from_gguf(
    metadata: Fields, dimensions: int, factors: Sequence[float] | None, *, theta: float = 10_000.0
) -> tuple[float, ...]:
    """What GGUF metadata says; ``factors`` are the divisors of ``rope_freqs.weight``, if any."""
    metadata.require("rope.dimension_count", dimensions)
    stretch = _linear_factor(metadata)
    theta = theta_of(metadata, "rope.freq_base", theta)
    frequencies = tuple(value / stretch for value in base_frequencies(theta, dimensions))
    if factors is None:
        return frequencies
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise UnsupportedModel(
            f"{metadata.where}: rope_freqs.weight has values that are no positive numbers"
        )
    return tuple(value / factor for value, factor in zip(frequencies, factors, strict=True))


def _linear_factor(metadata: Fields) -> float:
    """By how much positions are stretched; a factor whose kind is not named is linear.

    ``rope.scale_linear`` is the factor's name in older files.
    """
    kind = metadata.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{metadata.where}: rope scaling {quoted(kind)} is not supported")
    if kind == "none":
        return 1.0
    key = "rope.scaling.factor" if "rope.scaling.factor" in metadata else "rope.scale_linear"
    return metadata.number(key, 1.0, least=1.0)
