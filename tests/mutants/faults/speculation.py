"""Guesses that are believed, miscounted, or made where none should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.model import END, Prompt
from tests.mutants.toy.server import Json, Part
from tests.mutants.toy.speculation import Guesses, SpeculatingToy


@breaks("speculation.usage.member")
class TellsARate(SpeculatingToy):
    def told(self, guesses: Guesses) -> Json:
        return super().told(guesses) | {"rate": guesses.accepted / guesses.proposed}


@breaks("speculation.usage.counts", "speculation.usage.made")
class AcceptsMoreThanItProposed(SpeculatingToy):
    def told(self, guesses: Guesses) -> Json:
        return {"proposed": guesses.proposed, "accepted": guesses.proposed + 100}


@breaks("speculation.usage.made")
class CountsDraftsTwentyfold(SpeculatingToy):
    def told(self, guesses: Guesses) -> Json:
        return {"proposed": guesses.proposed * 100, "accepted": guesses.proposed * 99}


@breaks("speculation.usage.proposed")
class TellsOfNoGuesses(SpeculatingToy):
    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        usage = super().usage(prompt, ids)
        return usage | {"speculative": usage.get("speculative", self.told(Guesses()))}

    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        if not self.speculates(body):
            answer["usage"].pop("speculative")
        return answer


@breaks("speculation.usage.streamed")
class StreamsNoCounts(SpeculatingToy):
    def encode(self, value: object) -> str:
        if isinstance(value, dict) and value.get("choices") == [] and "usage" in value:
            usage = {name: n for name, n in value["usage"].items() if name != "speculative"}
            value = value | {"usage": usage}
        return super().encode(value)


@breaks("speculation.usage.seeded")
class GuessesAtSeededDraws(SpeculatingToy):
    def speculates(self, body: Json) -> bool:
        return True


@breaks("speculation.usage.greedy-seed")
class NeverGuessesWithASeed(SpeculatingToy):
    def speculates(self, body: Json) -> bool:
        return super().speculates(body) and body.get("seed") is None


@breaks(
    "speculation.greedy.same",
    "speculation.greedy.penalty",
    "speculation.greedy.stop",
    "speculation.greedy.end",
    "speculation.greedy.end-ignored",
    "speculation.greedy.cap",
)
class BelievesItsFirstGuess(SpeculatingToy):
    def step(self, draft: Sequence[int], plain: Sequence[int], accepted: int) -> list[int]:
        return [*(draft or plain)[:1], *super().step(draft, plain, accepted)[1:]]


@breaks("speculation.greedy.penalty")
class ForgetsThePenalty(SpeculatingToy):
    def tokens(self, prompt: Prompt, body: Json) -> Iterator[int]:
        if self.speculates(body):
            body = body | {"repetition_penalty": 1}
        return super().tokens(prompt, body)


@breaks("speculation.greedy.stop")
class LooksForStopsAfterSteps(SpeculatingToy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        if not self.speculates(body) or not body.get("stop"):
            return super().parts(prompt, body)
        *texts, _ = super().parts(prompt, body | {"stop": None})
        return iter([*texts[: len(texts) // 2 + 2], "stop"])


@breaks("speculation.greedy.end")
class PassesOverTheEnd(SpeculatingToy):
    def tokens(self, prompt: Prompt, body: Json) -> Iterator[int]:
        tokens = super().tokens(prompt, body)
        if body.get("ignore_eos") or not self.speculates(body):
            return tokens
        return (token for token in tokens if token != END)


@breaks("speculation.greedy.end-ignored")
class EndsAnyhow(SpeculatingToy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        if self.speculates(body):
            body = body | {"ignore_eos": False}
        return super().parts(prompt, body)


@breaks("speculation.greedy.cap")
class EmitsWholeSteps(SpeculatingToy):
    def cap(self, body: Json) -> int:
        cap = super().cap(body)
        return cap + 1 if self.speculates(body) and cap == 5 else cap


@breaks("speculation.greedy.streamed")
class LosesATokenOfAStream(SpeculatingToy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return super().events(path, body | {"prompt": f"{body['prompt']} "})
