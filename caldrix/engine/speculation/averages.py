"""Decayed means: what a quantity has been of late, and how much was seen of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attrs import field, frozen, validators

_KEPT = 0.95
"""What is left of an observation's weight at the next one: some twenty count."""
_IDLE = 0.995
"""What is left of it at each step that observes something else: half after 140 steps."""
_LEAST_WEIGHT = 1e-3
"""What was known once is never quite forgotten."""
OUTLIER = 1.5
"""A cost counts as at most so many times what was expected: a stall tells nothing of the next."""
_FURTHER_TOKEN = 0.1
"""What another draft token adds to a step as long as nothing else is known, in plain steps."""
_AGILITY = 0.5
"""How far a step moves the pace towards its own."""
_NO_TIME = 1e-9
"""Seconds that the fastest step takes."""


@frozen
class Estimate:
    """A decayed mean; with a weight of 0 nothing is known."""

    value: float = field(validator=[validators.ge(0.0), validators.lt(math.inf)])
    weight: float = field(validator=[validators.ge(0.0), validators.lt(math.inf)])


UNKNOWN = Estimate(0.0, 0.0)


class Averages:
    """Means of several quantities that are observed one at a time."""

    def __init__(self, estimates: Iterable[Estimate]) -> None:
        estimates = tuple(estimates)
        self.values = [each.value for each in estimates]
        self.weights = [each.weight for each in estimates]

    def observe(self, index: int, value: float) -> float:
        """Takes in a value of one of them, and returns it."""
        weight = self.weights[index] * _KEPT + 1.0
        self.weights[index] = weight
        self.values[index] += (value - self.values[index]) / weight
        return value

    def age(self) -> None:
        """Lets a step pass: what is known is a little older."""
        self.weights = [
            weight * _IDLE if weight > _LEAST_WEIGHT else weight for weight in self.weights
        ]

    def estimates(self) -> tuple[Estimate, ...]:
        """All of them, as they could be given to a new one."""
        return tuple(map(Estimate, self.values, self.weights))


class Costs(Averages):
    """What steps cost by the length of their drafts, in plain steps.

    A cost is expected to be somewhat above that of the length before, as if it had been observed
    so once, beside all that was really observed of late. So a stall at the one trial of a length
    does not count for long.
    """

    def __init__(self, estimates: Iterable[Estimate]) -> None:
        super().__init__(estimates)
        self.expected = self._expected()

    def observe(self, index: int, value: float) -> float:
        """Takes in a cost, and returns what it counts as: far above what was expected is cut."""
        value = super().observe(index, min(value, OUTLIER * self.expected[index]))
        self.expected = self._expected()
        return value

    def _expected(self) -> Sequence[float]:
        expected = [self.values[0]]
        for value, weight in zip(self.values[1:], self.weights[1:], strict=True):
            before = expected[-1] + _FURTHER_TOKEN * expected[0]
            expected.append((value * weight + before) / (weight + 1.0))
        return expected


class Pace:
    """How long a plain step takes just now, told from steps of every kind.

    What else the machine does, or a context that grows, changes the times of all steps alike. Held
    against the pace, the cost of a step that was seen long ago is still worth something.
    """

    def __init__(self) -> None:
        self._seconds = 0.0

    def cost(self, seconds: float, expected: float) -> float:
        """Seconds, in plain steps; what was ``expected`` while no step was seen."""
        return max(seconds, _NO_TIME) / self._seconds if self._seconds else expected

    def follow(self, seconds: float, expected: float, weight: float) -> None:
        """A step took so long, where its cost was expected to be ``expected`` plain steps.

        It counts for the less, the smaller the ``weight`` of that expectation.
        """
        plain = max(seconds, _NO_TIME) / expected
        if not self._seconds:
            self._seconds = plain
        change = min(plain, OUTLIER * self._seconds) - self._seconds
        self._seconds += _AGILITY * weight / (weight + 1.0) * change
