"""Token ids that are sent unasked, lost, or that change the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.server import Json, Part, Toy


@breaks("fields.token-ids.default", "fields.token-ids.null", "fields.token-ids.unasked-chunks")
class AlwaysSendsIds(Toy):
    def post(self, path: str, body: Json) -> Any:
        self.check(path, body)
        return super().post(path, body | {"return_token_ids": True})


@breaks("fields.token-ids.whole", "fields.token-ids.streamed")
class LosesTheLastId(Toy):
    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        (choice,) = answer["choices"]
        if "token_ids" in choice:
            choice["token_ids"].pop()
        return answer


@breaks("fields.token-ids.streamed")
class LosesIdsOfChunks(Toy):
    def with_ids(self, chunk: Json, ids: list[int]) -> Json:
        return super().with_ids(chunk, ids[1:])


@breaks("fields.token-ids.same-text")
class WritesOtherwiseWithIds(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        for part in super().parts(prompt, body):
            loud = isinstance(part, Part) and body.get("return_token_ids")
            yield Part(part.text.upper(), part.ids) if loud and isinstance(part, Part) else part
