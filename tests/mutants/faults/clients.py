"""Clients that are turned away, mixed up, or that leave and are not noticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any

from attrs import define, field

from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json, Toy
from tests.mutants.toy.wire import Handler, Left


@breaks("server.host.foreign")
class AnswersAnyHost(Toy):
    def check_host(self, host: str) -> None:
        pass


@breaks("server.host.foreign")
class AnswersNamesThatBeginWell(Toy):
    def check_host(self, host: str) -> None:
        if not host.startswith(("127.0.0.1", "localhost", "[::1]", "LOCALHOST")):
            raise Refused(403, "another host")


@breaks("server.host.own")
class AnswersItsAddressAlone(Toy):
    def check_host(self, host: str) -> None:
        if not host.startswith("127.0.0.1:"):
            raise Refused(403, "another host")


@breaks(
    *("server.key.none", "server.requests.concurrent", "server.requests.streams"),
    *("server.requests.others", "server.requests.abandoned"),
    *(f"server.leaving.{stage}" for stage in ("whole", "prefill", "queued", "head", "body")),
)
class NeedsAKey(Toy):
    def check_headers(self, headers: Message) -> None:
        super().check_headers(headers)
        if "Content-Type" in headers and not ("Authorization" in headers or "api-key" in headers):
            raise Refused(401, "no key")


@breaks("server.key.any")
class ChecksKeys(Toy):
    def check_headers(self, headers: Message) -> None:
        super().check_headers(headers)
        if headers.get("Authorization"):
            raise Refused(401, "a wrong key")


@breaks("server.requests.concurrent", "server.requests.streams")
@define
class MixesRequestsUp(Toy):
    latest: Json = field(factory=dict)

    def post(self, path: str, body: Json) -> Any:
        self.latest = body
        time.sleep(0.05)
        return super().post(path, self.latest)


@breaks("server.requests.others")
@define
class DoesOneThingAtATime(Toy):
    streams: int = 0
    begun: bool = False

    def events(self, path: str, body: Json) -> Iterator[str]:
        self.streams += 1
        self.begun = True
        try:
            events = super().events(path, body)
            yield next(events)
            # Or a quick one would be done before anything else is asked.
            time.sleep(0.2)
            yield from events
        finally:
            self.streams -= 1

    def get(self, path: str) -> Json | str:
        # Once a stream: one that was left takes a moment to run out, and is not to count.
        busy, self.begun = self.streams and self.begun, False
        if busy and path == "/healthz":
            raise Refused(503, "busy")
        return super().get(path)


def is_endless(body: Json) -> bool:
    return bool(body.get("ignore_eos")) and not body.get("max_tokens")


def _holding(name: str, holds: Callable[[Json, Json], bool]) -> type[Toy]:
    """A row that is not freed when its client leaves: the next request finds no place."""

    @define
    class Holding(Toy):
        before: Json = field(factory=dict)
        held: bool = False

        def post(self, path: str, body: Json) -> Any:
            if body.get("prompt") == "Hi" and not is_endless(body):
                # The one that left may be read only now.
                time.sleep(0.1)
            if self.held and not is_endless(body):
                self.held, self.before = False, {}
                raise Refused(503, "busy")
            self.held = self.held or (is_endless(body) and holds(self.before, body))
            self.before = body
            return super().post(path, body)

        def get(self, path: str) -> Json | str:
            self.held, self.before = False, {}
            return super().get(path)

    Holding.__name__ = f"Holds_on_{name}"
    return Holding


FAULTS |= {
    _holding(
        "streaming", lambda before, body: bool(body.get("stream")) and body["prompt"] == "Hi"
    ): frozenset({"server.requests.abandoned", "server.leaving.queued"}),
    _holding(
        "answering",
        lambda before, body: (
            not (body.get("stream") or is_endless(before)) and body["prompt"] == "Hi"
        ),
    ): frozenset({"server.leaving.whole"}),
    _holding("prefilling", lambda before, body: body["prompt"] != "Hi"): frozenset(
        {"server.leaving.prefill"}
    ),
    _holding(
        "queueing", lambda before, body: bool(before.get("stream")) and not body.get("stream")
    ): frozenset({"server.leaving.queued"}),
}


class _Waiting(Handler):
    """Waits on for a client that left, and has no time for the next."""

    waits = False
    what = ""

    def read(self, raw: bytes) -> dict[str, Any]:
        body = super().read(raw)
        if body.get("prompt") == "Hi" and not is_endless(body):
            # The one that left may not have been seen to leave before.
            time.sleep(0.2)
            if type(self).waits:
                type(self).waits = False
                raise Refused(503, "busy")
        return body

    def parse_request(self) -> bool:
        parsed = False
        try:
            parsed = super().parse_request()
        finally:
            if not parsed and self.what == "head":
                type(self).waits = True
        return parsed

    def exactly(self, size: int) -> bytes:
        try:
            return super().exactly(size)
        except Left:
            if self.what == "body":
                type(self).waits = True
            raise


class _WaitingForHeads(_Waiting):
    what = "head"


class _WaitingForBodies(_Waiting):
    what = "body"


@breaks("server.leaving.head")
class WaitsForTheHead(Toy):
    handler = _WaitingForHeads


@breaks("server.leaving.body")
class WaitsForTheBody(Toy):
    handler = _WaitingForBodies
