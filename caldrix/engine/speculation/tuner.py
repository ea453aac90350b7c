"""How long a draft should be, found out while decoding.

A step with a draft of L tokens gives 1 + r1 + r1 r2 + ... + r1 ... rL tokens, where ri is how often
the draft's i-th token is right once those before it were, and takes the time of drafting L tokens
and of computing L + 1. Both are measured as decoding goes on, and the length with the most tokens
a second is used. Times are held in plain steps, steps without a draft, as long as these take just
then. (The expectation is that of Leviathan et al. 2023, "Fast inference from transformers via
speculative decoding", with a rate for each position instead of one for all.)

What is not tried is not measured, so now and then another length gets a trial: of those that good
luck would make better than the best, the one with the most to win for what it may lose. Trials are
paid from a credit, a small part of the time that decoding takes: what a trial loses against the
best known length is taken from it, and what it wins is added. So hopeless text costs no more than
that part; and a text that has become predictable pays for trial after trial, and is seen as such in
a few steps. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import frozen

from caldrix.engine.speculation.averages import (
    OUTLIER,
    UNKNOWN,
    Averages,
    Costs,
    Estimate,
    Pace,
)

LONGEST_DRAFT = 8
_LENGTHS = range(LONGEST_DRAFT + 1)

_CREDIT_SHARE = 0.01
"""The part of the decoding time that trials may lose."""
_FIRST_CREDIT = 3.0
"""What they may lose at once, in plain steps, so that a first answer gains as well."""
_MOST_CREDIT = 4.0
"""So much of it is kept at most, in plain steps."""
_LEAST_LOSS = 1e-6
"""A trial that loses less is free."""


@frozen
class TunerState:
    """All that a tuner has learned."""

    acceptance: tuple[tuple[Estimate, ...], ...]
    """For each kind of guess and position: how often it is right when those before it are."""
    steps: tuple[Estimate, ...]
    """What a step with a draft of no token takes, of 1 token, …, in plain steps."""
    drafting: Estimate
    """What each token of a draft takes before that, in plain steps."""

    def __attrs_post_init__(self) -> None:
        lengths = {len(self.steps), *(1 + len(kind) for kind in self.acceptance)}
        if lengths != {len(_LENGTHS)}:
            raise ValueError(f"a tuner's state is of drafts of up to {LONGEST_DRAFT} tokens")
        if not (self.steps[0].weight and self.steps[0].value):
            raise ValueError("a tuner's state has the cost of a plain step")
        if any(each.value > 1.0 for kind in self.acceptance for each in kind):
            raise ValueError("a tuner's acceptance rates are at most 1")

    @classmethod
    def fresh(cls, kinds: int) -> TunerState:
        """Nothing is known, save that a plain step takes a plain step's time."""
        return cls(
            acceptance=((UNKNOWN,) * LONGEST_DRAFT,) * kinds,
            steps=(Estimate(1.0, 1.0), *(UNKNOWN,) * LONGEST_DRAFT),
            drafting=UNKNOWN,
        )


@frozen
class _Choice:
    length: int
    price: float | None = None
    """What a token takes at the best known length, if this is a trial of another."""


class Tuner:
    """Chooses the length of each draft. It has no clock: it is told what things took."""

    def __init__(
        self, kinds: int, *, fixed: int | None = None, state: TunerState | None = None
    ) -> None:
        """``fixed`` is the length of every draft; ``state`` is what a tuner learned before."""
        state = TunerState.fresh(kinds) if state is None else state
        if len(state.acceptance) != kinds:
            raise ValueError(f"the state is of {len(state.acceptance)} kinds, not of {kinds}")
        self._fixed = fixed
        self._acceptance = [Averages(each) for each in state.acceptance]
        self._steps = Costs(state.steps)
        self._drafting = Averages([state.drafting])
        self._pace = Pace()
        self._credit = 0.0
        self._started = False
        self._trial_price: float | None = None

    @property
    def state(self) -> TunerState:
        """What it has learned."""
        return TunerState(
            acceptance=tuple(each.estimates() for each in self._acceptance),
            steps=self._steps.estimates(),
            drafting=self._drafting.estimates()[0],
        )

    def choose(self, kind: int) -> int:
        """The length, 0 to 8, of a draft of this kind that comes next."""
        if self._fixed is not None:
            return self._fixed
        choice = self._choose(self._acceptance[kind])
        self._trial_price = choice.price
        return choice.length

    def drop_trial(self) -> None:
        """Forgets a choice whose step is not recorded, such as a sequence's last one."""
        self._trial_price = None

    def record(
        self,
        kind: int,
        proposed: int,
        accepted: int,
        seconds: float,
        *,
        proposing: float = 0.0,
        catching_up: float = 0.0,
    ) -> None:
        """A step is done: ``accepted`` of its ``proposed`` draft tokens were right.

        ``seconds`` is the step's time, ``proposing`` that of the draft before it, and
        ``catching_up`` that of reading what the proposer had not followed, after steps without a
        draft. It would not come up if all steps had drafts, so only a trial has to pay for it.
        """
        self._age()
        expected, weight = self._steps.expected[proposed], self._steps.weights[proposed]
        # By the pace of the steps before: its own would make every cost what was expected.
        cost = self._steps.observe(proposed, self._pace.cost(seconds, expected))
        self._pace.follow(seconds, expected, weight)
        if proposed:
            cost += self._observe_drafting(proposed, self._pace.cost(proposing, 0.0))
            rates = self._acceptance[kind]
            for position in range(accepted):
                rates.observe(position, 1.0)
            if accepted < proposed:
                rates.observe(accepted, 0.0)
        self._settle(accepted, cost, self._pace.cost(catching_up, 0.0))

    def watch(self, kind: int, position: int, right: bool) -> None:
        """A token proposed but not verified, after others that were right, proved right or not."""
        self._acceptance[kind].observe(position, float(right))

    def _observe_drafting(self, tokens: int, cost: float) -> float:
        """Takes in what the tokens of a draft took, and returns what that counts as."""
        known, weight = self._drafting.values[0], self._drafting.weights[0]
        each = cost / tokens
        return tokens * self._drafting.observe(0, min(each, OUTLIER * known) if weight else each)

    def _settle(self, accepted: int, cost: float, catching_up: float) -> None:
        """Books what the step adds to the credit, and what it took if it was a trial."""
        self._credit += _CREDIT_SHARE * cost if self._started else _FIRST_CREDIT
        self._started = True
        if self._trial_price is not None:
            self._credit -= cost + catching_up - (accepted + 1) * self._trial_price
        self._credit = min(self._credit, _MOST_CREDIT)
        self._trial_price = None

    def _age(self) -> None:
        for averages in (*self._acceptance, self._steps, self._drafting):
            averages.age()

    def _choose(self, rates: Averages) -> _Choice:
        """The best length by what is known for sure, or a trial of one that might be better."""
        drafting = self._drafting.values[0]
        costs = [step + length * drafting for length, step in enumerate(self._steps.expected)]
        tokens = _expected_tokens(_cautious(rates))
        prices = [each / count for each, count in zip(costs, tokens, strict=True)]
        price = min(prices)
        best = prices.index(price)
        losses = {
            length: each - price * count
            for length, (each, count) in enumerate(zip(costs, tokens, strict=True))
            if length != best and each - price * count <= self._credit
        }
        trial = self._trial(rates, costs, best, price, losses) if losses else None
        return _Choice(best) if trial is None else _Choice(trial, price)

    def _trial(
        self,
        rates: Averages,
        costs: Sequence[float],
        best: int,
        price: float,
        losses: Mapping[int, float],
    ) -> int | None:
        """Of the lengths whose loss can be paid, the one with the most to win for it.

        None where even luck would make none of them better than the best.
        """
        tokens = _expected_tokens(_hopeful(rates))
        # As if each had once cost no more than a plain step.
        hoped = [
            (each * weight + costs[0]) / (weight + 1.0)
            for each, weight in zip(costs, self._steps.weights, strict=True)
        ]
        best_price = hoped[best] / tokens[best]
        odds = {
            length: (price * tokens[length] - hoped[length]) / max(loss, _LEAST_LOSS)
            for length, loss in losses.items()
            if hoped[length] / tokens[length] < best_price
        }
        return max(odds, key=lambda length: odds[length], default=None)


def _cautious(rates: Averages) -> Iterator[float]:
    """Acceptance rates as if one token more of the first position had been wrong.

    And one more of each other position as often right as the position before it: where a draft's
    beginning is right, its end mostly is as well.
    """
    rate = 0.0
    for value, weight in zip(rates.values, rates.weights, strict=True):
        rate = (value * weight + rate) / (weight + 1.0)
        yield rate


def _hopeful(rates: Averages) -> Iterator[float]:
    """Acceptance rates as if one token more of each position had been right."""
    for value, weight in zip(rates.values, rates.weights, strict=True):
        yield (value * weight + 1.0) / (weight + 1.0)


def _expected_tokens(rates: Iterable[float]) -> list[float]:
    """Tokens that a step gives, for each length of draft: the model's own, and those accepted."""
    tokens, all_right = [1.0], 1.0
    for rate in rates:
        all_right *= rate
        tokens.append(tokens[-1] + all_right)
    return tokens
