"""The load: many clients, each with one request after the other, and a look at every answer.

What a client asks next is drawn from a generator of the request's number alone, so a seed gives the
same requests whoever comes to send them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import httpx2
import trio
from attrs import asdict, define, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.soak.client import Client, Leaving, NoAnswer, Reply, Stage, json_request, request
from tests.soak.memory import MemoryCurve
from tests.soak.questions import Answer, Exam, Question, streamed, whole
from tests.soak.refusals import QUEUE_FULL, bad_requests

OVERLOAD = 4
"""Clients for each place that the server has."""
# Of the requests: bad ones, those whose client leaves, and those that end their sending.
_BAD, _LEAVES, _HALF_CLOSES = 0.12, 0.30, 0.03
_MOST_PAUSE, _MOST_RECEIVED = 0.05, 3000
_PATIENCE = 120.0
"""Seconds after which a request is taken for lost."""
_LONGEST_RETRY = 0.25
_LOOKS_EVERY = 0.1

Gauges = dict[str, float]


@frozen
class Capacity:
    """What the server takes at once."""

    rows: int
    queue_depth: int

    @property
    def clients(self) -> int:
        """As many as are `OVERLOAD` times too many."""
        return OVERLOAD * (self.rows + self.queue_depth)


@define
class Tally:
    """What came of the requests."""

    outcomes: Counter[str] = field(factory=Counter)
    violations: list[str] = field(factory=list)
    done: int = 0
    peaks: Counter[str] = field(factory=Counter)
    """The most that ran and waited at once, of those moments that were looked at."""

    def expect(self, kept: bool, violation: str) -> None:
        """Notes what was violated unless it was ``kept``."""
        if not kept:
            self.violations.append(violation)


@frozen
class _Asked:
    """One of the exam's questions, in one of the ways in which it can be asked."""

    question: Question
    answer: Answer
    streams: bool
    with_ids: bool
    with_counts: bool

    def request(self, model: str, *, endless: bool = False) -> bytes:
        fields: dict[str, Any] = {**self.question.fields, "model": model}
        if endless:
            fields |= {"max_tokens": None, "ignore_eos": True}
        if self.streams:
            fields["stream"] = True
            if self.with_counts:
                fields["stream_options"] = {"include_usage": True}
        if self.with_ids:
            fields["return_token_ids"] = True
        return json_request(self.question.path, fields)

    @property
    def expected(self) -> Answer:
        """The answer, of which a client sees no more than it asked for."""
        parts = asdict(self.answer)
        if not self.with_ids:
            parts["token_ids"] = None
        if self.streams and not self.with_counts:
            parts["counts"] = None
        return Answer(**parts)


async def load(
    url: str,
    exam: Exam,
    tally: Tally,
    *,
    capacity: Capacity,
    requests: int,
    clients: int,
    seed: int,
    memory: MemoryCurve,
) -> None:
    """Sends the requests, and counts what comes of them into ``tally``."""
    parsed = httpx2.URL(url)
    assert parsed.port is not None
    numbers = iter(range(requests))
    run = _Run(exam, tally, (parsed.host, parsed.port), seed, numbers, memory)
    memory.note(0)
    async with trio.open_nursery() as watching:
        watching.start_soon(_look, url, tally, capacity)
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(run.client)
        watching.cancel_scope.cancel()


async def gauges(client: httpx2.AsyncClient) -> Gauges:
    """The server's figures that have no labels."""
    page = (await client.get("/metrics")).text
    return {
        sample.name.removeprefix("caldrix_"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.labels
    }


async def _look(url: str, tally: Tally, capacity: Capacity) -> None:
    """Sees again and again that no more run and wait than may."""
    limits = {
        "num_requests_running": capacity.rows,
        # Those that no row was given yet wait, too, beside those of the queue.
        "num_requests_waiting": capacity.rows + capacity.queue_depth,
    }
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=_PATIENCE) as client:
        while True:
            now = await gauges(client)
            for name, most in limits.items():
                tally.peaks[name] = max(tally.peaks[name], int(now[name]))
                tally.expect(now[name] <= most, f"{name} is {now[name]:g}, and {most} may be")
            together = sum(now[name] for name in limits)
            most = capacity.rows + capacity.queue_depth
            tally.expect(together <= most, f"{together:g} run and wait, and {most} may")
            await trio.sleep(_LOOKS_EVERY)


@frozen
class _Run:
    exam: Exam
    tally: Tally
    address: tuple[str, int]
    seed: int
    numbers: Iterator[int]
    memory: MemoryCurve

    async def client(self) -> None:
        """Sends request after request, until there are none left."""
        client = Client(self.address)
        for number in self.numbers:
            random = Random(f"{self.seed}/{number}")
            outcome = "lost"
            try:
                with trio.fail_after(_PATIENCE):
                    outcome = await self._perform(client, random, number)
            except NoAnswer as error:
                self.tally.violations.append(f"request {number}: {error}")
            except trio.TooSlowError:
                self.tally.violations.append(f"request {number}: no answer in {_PATIENCE:g} s")
                await client.close()
            self.tally.outcomes[outcome] += 1
            self.tally.done += 1
            self.memory.note(self.tally.done)
        await client.close()

    async def _perform(self, client: Client, random: Random, number: int) -> str:
        """Sends a request; what came of it."""
        kind = random.random()
        if kind < _BAD:
            return await self._ask_badly(client, random, number)
        question, answer = random.choice(self.exam.answers)
        asked = _Asked(question, answer, *(random.random() < 0.5 for _ in range(3)))
        if kind < _BAD + _LEAVES:
            return await self._leave(client, asked, random, number)
        data = asked.request(self.exam.model)
        if kind < _BAD + _LEAVES + _HALF_CLOSES:
            return await self._half_close(client, asked, data, number)
        return await self._ask(client, asked, data, random, number)

    async def _ask(
        self, client: Client, asked: _Asked, data: bytes, random: Random, number: int
    ) -> str:
        reply = await self._until_taken(lambda: client.ask(data), random, number)
        assert reply is not None
        self._check_answer(asked, reply, number)
        return "answered in a stream" if asked.streams else "answered"

    async def _leave(self, client: Client, asked: _Asked, random: Random, number: int) -> str:
        """Leaves an answer that had no end, unless it could not leave without one."""
        leaving = _leaving(random)
        endless = asked.streams or leaving.stage is not Stage.ANSWER
        data = asked.request(self.exam.model, endless=endless)
        reply = await self._until_taken(lambda: client.ask_and_leave(data, leaving), random, number)
        if reply is not None:
            body = reply.body[:300]
            self.tally.violations.append(f"request {number}: {reply.status} {body!r}")
        return f"left {leaving.stage.value}"

    async def _until_taken(
        self, ask: Callable[[], Awaitable[Reply | None]], random: Random, number: int
    ) -> Reply | None:
        """Asks until it is not refused for want of a place."""
        pause = 0.005
        while (reply := await ask()) is not None and reply.status == 429:
            self.tally.outcomes["refused as the queue was full, and asked again"] += 1
            self._check_full(reply, number)
            await trio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_RETRY)
        return reply

    async def _half_close(self, client: Client, asked: _Asked, data: bytes, number: int) -> str:
        reply = await client.ask_and_end_sending(data)
        if reply is None:
            return "ended its sending, and was given up"
        if reply.status == 429:
            self._check_full(reply, number)
            return "ended its sending, and was refused"
        self._check_answer(asked, reply, number)
        return "ended its sending, and was answered"

    async def _ask_badly(self, client: Client, random: Random, number: int) -> str:
        bad = random.choice(bad_requests(self.exam.model))
        reply = await client.ask(request(bad.path, bad.content, bad.declared))
        self.tally.expect(
            bad.refused_by(reply.status, reply.body),
            f"request {number} ({bad.name}): {reply.status} {reply.body[:300]!r}",
        )
        return "refused as a bad request"

    def _check_full(self, reply: Reply, number: int) -> None:
        kept = json.loads(reply.body) == {"error": QUEUE_FULL}
        self.tally.expect(kept, f"request {number}: a 429 says {reply.body[:300]!r}")

    def _check_answer(self, asked: _Asked, reply: Reply, number: int) -> None:
        try:
            if reply.status != 200 or reply.streamed != asked.streams:
                raise ValueError(reply.status)
            answer = streamed(reply.body) if asked.streams else whole(reply.body)
        except (ValueError, LookupError) as error:
            self.tally.violations.append(f"request {number}: {error!r}: {reply.body[:300]!r}")
            return
        self.tally.expect(
            answer == asked.expected,
            f"request {number}: {asked.question} was answered {answer}, and alone {asked.expected}",
        )


def _leaving(random: Random) -> Leaving:
    return Leaving(
        random.choice(list(Stage)),
        seconds=random.uniform(0, _MOST_PAUSE),
        received=random.randint(1, _MOST_RECEIVED),
        resets=random.random() < 0.5,
    )
