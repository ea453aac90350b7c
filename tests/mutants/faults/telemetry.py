"""Records that say something wrong, too much, or nothing."""

from __future__ import annotations

from collections import deque
from typing import Any

from attrs import define, field

from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.model import Sampling
from tests.mutants.toy.server import CHAT, Json
from tests.mutants.toy.speculation import SpeculatingToy
from tests.mutants.toy.telemetry import ObservedToy, Watch


def _saying(clause_id: str, **members: Any) -> None:
    """A server whose records all say the same of some members, and so break one clause."""

    class Saying(ObservedToy):
        def record(self, watch: Watch, status: int) -> Json:
            return super().record(watch, status) | members

    Saying.__name__ = f"Says_{'_'.join(members)}_wrongly"
    FAULTS[Saying] = frozenset({clause_id})


_saying("telemetry.record.received", received=1.5)
_saying("telemetry.record.phases", prefill_ms=600_000.0)
_saying("telemetry.record.cached", cached_tokens=100_000)
_saying("telemetry.record.lane", lane="")
_saying("telemetry.text.ids", ids=[4, 5, 6])


@breaks("telemetry.json")
class RecordsAsText(ObservedToy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        return self.encode(answer) if path == "/debug/requests" else answer


@breaks("telemetry.requests")
class HasAnotherForm(ObservedToy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        return (
            {"items": answer["requests"]}
            if isinstance(answer, dict) and "requests" in answer
            else answer
        )


@breaks("telemetry.order")
class OldestFirst(ObservedToy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        if path == "/debug/requests" and isinstance(answer, dict):
            # A refused request's record stays where it is looked for.
            answer["requests"].sort(key=lambda one: one["status"] == 200 and one["received"])
        return answer


class Forgetful(ObservedToy):
    """Keeps no record of some requests."""

    def forgets(self, record: Json) -> bool:
        raise NotImplementedError

    def keep(self, watch: Watch, status: int) -> None:
        super().keep(watch, status)
        if self.forgets(self.records[0]):
            self.records.popleft()


@breaks("telemetry.recent")
class ForgetsShortAnswers(Forgetful):
    def forgets(self, record: Json) -> bool:
        return bool(record["completion_tokens"] == 2)


@breaks("telemetry.streamed")
class ForgetsStreams(ObservedToy):
    def keep(self, watch: Watch, status: int) -> None:
        super().keep(watch, status)
        if watch.body.get("stream"):
            self.records.popleft()


@breaks("telemetry.record.refused")
class ForgetsRefusals(Forgetful):
    def forgets(self, record: Json) -> bool:
        return bool(record["status"] == 400)


@breaks("telemetry.record.refused")
class CountsRefusals(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        record = super().record(watch, status)
        return record if status == 200 else record | {"prompt_tokens": 0, "finish_reason": "error"}


@breaks("telemetry.counts", "telemetry.streamed")
class CountsTogether(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        total = watch.usage.get("total_tokens")
        return super().record(watch, status) | {"completion_tokens": total}


@breaks("telemetry.record.status")
class CallsSuccessCreated(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        return super().record(watch, 201 if status == 200 else status)


@breaks("telemetry.record.members", "telemetry.record.phases")
class KeepsTimesAsTexts(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        record = super().record(watch, status)
        return record | {"queue_ms": str(record["queue_ms"])} if status == 200 else record


@breaks("telemetry.record.route")
class CallsAllChat(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        return super().record(watch, status) | {"route": CHAT}


@breaks("telemetry.record.finish-reason")
class CallsEveryEndLength(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        record = super().record(watch, status)
        return record | {"finish_reason": record["finish_reason"] and "length"}


@breaks("telemetry.record.speculative")
class KeepsNoGuesses(SpeculatingToy):
    def record(self, watch: Watch, status: int) -> Json:
        return super().record(watch, status) | {"speculative": None}


@breaks("telemetry.record.plain")
class TellsOfNoGuesses(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        none = {"proposed": 0, "accepted": 0}
        return super().record(watch, status) | {"speculative": none}


@breaks("telemetry.sampling.settings")
class ForgetsTheCuts(ObservedToy):
    def settings(self, watch: Watch) -> Json | None:
        used = super().settings(watch)
        whole = watch.body.get("temperature") == 0.75
        return used | {"top_k": 0, "top_p": 1.0} if used and whole else used


@breaks("telemetry.sampling.defaults", "telemetry.record.members")
class RecordsWhatWasGiven(ObservedToy):
    def settings(self, watch: Watch) -> Json | None:
        used = super().settings(watch)
        return used and {
            name: value if name in watch.body or name == "seed" else None
            for name, value in used.items()
        }


@breaks("telemetry.sampling.greedy")
class DrawsSeedsForTheGreedy(ObservedToy):
    def settings(self, watch: Watch) -> Json | None:
        used = super().settings(watch)
        return used | {"seed": 5} if used and used["seed"] is None else used


@breaks("telemetry.sampling.seed", "telemetry.sampling.fresh", "telemetry.sampling.reproduced")
class RecordsTheSeedAsGiven(ObservedToy):
    def settings(self, watch: Watch) -> Json | None:
        used = super().settings(watch)
        return used and used | {"seed": watch.body.get("seed")}


@breaks("telemetry.sampling.fresh")
class AlwaysDrawsTheSame(ObservedToy):
    def draw(self) -> int:
        return 7


@breaks("telemetry.sampling.reproduced")
class RecordsAnotherSeed(ObservedToy):
    """The one behind a request's, as if it were read after the draw."""

    def settings(self, watch: Watch) -> Json | None:
        used = super().settings(watch)
        if used is None or watch.body.get("seed") not in (None, -1) or used["seed"] is None:
            return used
        return used | {"seed": used["seed"] + 1}


@breaks("telemetry.most")
@define
class KeepsAll(ObservedToy):
    records: deque[Json] = field(factory=deque)


@breaks("telemetry.least")
@define
class KeepsAHundred(ObservedToy):
    records: deque[Json] = field(factory=lambda: deque(maxlen=100))


@breaks("telemetry.itself", "telemetry.record.refused")
class RecordsItsReaders(ObservedToy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        if isinstance(answer, dict) and "requests" in answer and len(self.records) < 200:
            answer["requests"].insert(0, self.record(Watch(path, {}, Sampling()), 404))
        return answer


@breaks("telemetry.text.prompt")
class KeepsPrompts(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        record = super().record(watch, status)
        told = watch.body.get("messages", watch.body.get("prompt"))
        return record if status != 200 else record | {"prompt": str(told)[:100]}


@breaks("telemetry.text.answer")
class KeepsAnswers(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        choice: Json = (watch.chunk.get("choices") or [{}])[0]
        text = choice.get("text") or (choice.get("message") or {}).get("content")
        return super().record(watch, status) | {"answer": text}


@breaks("telemetry.text.fields")
class KeepsUsers(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        return super().record(watch, status) | {"user": watch.body.get("user")}


@breaks("telemetry.text.refused")
class KeepsWhatItRefused(ObservedToy):
    def record(self, watch: Watch, status: int) -> Json:
        record = super().record(watch, status)
        model = watch.body.get("model")
        return record | {"refused": model} if status == 400 else record


@breaks("telemetry.requests")
class EndsInNull(ObservedToy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        if isinstance(answer, dict) and "requests" in answer:
            answer["requests"].append(None)
        return answer
