"""A right server of typed decisions that keeps records of them."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from attrs import define

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import SYSTEMONE
from tests.mutants.toy.server import Json, right
from tests.mutants.toy.systemone import SystemOneToy
from tests.mutants.toy.telemetry import ObservedToy, Watch
from tests.mutants.toy.wire import Handler


class DecidedHandler(Handler):
    """It names the record of an answer to questions."""

    toy: ObservedSystemOneToy

    def headers_of(self, status: int, media_type: str) -> dict[str, str]:
        headers = super().headers_of(status, media_type)
        if self.path != SYSTEMONE or status != 200:
            return headers
        return headers | {"X-Request-Id": self.toy.answer_id()}


@right
@define
class ObservedSystemOneToy(ObservedToy, SystemOneToy):
    """Its records of decisions are like others, and the header of an answer names its own."""

    lacks: ClassVar[frozenset[Capability]] = ObservedToy.lacks & SystemOneToy.lacks
    handler: ClassVar[type[Handler]] = DecidedHandler

    def post(self, path: str, body: Json) -> Any:
        if path != SYSTEMONE:
            return super().post(path, body)
        watch = Watch(path, body)
        with self.watching(watch):
            answer = super().post(path, body)
            tokens = json.loads(str(answer))["usage"]["input_tokens"]
            watch.usage = {"prompt_tokens": tokens, "completion_tokens": 0}
            watch.chunk, watch.reason = {"id": f"systemone-{next(self.numbers)}"}, "stop"
            self.keep(watch, 200)
        return answer

    def record(self, watch: Watch, status: int) -> Json:
        found = super().record(watch, status)
        decided = watch.path == SYSTEMONE and status == 200
        return self.decided(found) if decided else found

    def decided(self, record: Json) -> Json:
        return record | {"decode_ms": 0.0}

    def answer_id(self) -> str:
        """That of the last answer; the suite asks for one at a time."""
        return str(self.records[0]["id"])
