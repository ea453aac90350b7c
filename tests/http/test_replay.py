"""The replay ring: what it keeps, and what running a request again tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.replay import first_difference
from tests.support import miniature
from tests.support.serving import MODEL, Running, never_ends, says, scripted, serving, trio_test
from tests.support.wire import TEXT, connected, post

REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}


async def listed(server: Running) -> list[dict[str, Any]]:
    answer = await server.client.get("/debug/replay")
    assert answer.status_code == 200
    kept = answer.json()["requests"]
    assert isinstance(kept, list)
    return kept


async def replayed(server: Running, answer_id: str = "cmpl-1") -> dict[str, Any]:
    answer = await server.client.post(f"/debug/replay/{answer_id}")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert isinstance(told, dict)
    return told


def same(tokens: int) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "same": True,
        "first_difference": None,
        "tokens": tokens,
        "replayed_tokens": tokens,
    }


# Answers of a model that says "one two", and how many tokens each has
ANSWERS: dict[str, tuple[dict[str, object], int]] = {
    "ended": ({}, 7),
    "capped": ({"max_tokens": 3}, 3),
    "streamed": ({"stream": True}, 7),
    "cut by a stop string": ({"stop": " t"}, 5),
    "past its end": ({"ignore_eos": True, "max_tokens": 9}, 9),
    "penalized": ({"repetition_penalty": 1.5}, 7),
}


@pytest.mark.parametrize(("fields", "tokens"), ANSWERS.values(), ids=ANSWERS)
@trio_test
async def test_an_answer_is_the_same_again(fields: dict[str, object], tokens: int) -> None:
    async with serving(says("one two"), replay_ring=2) as server:
        await server.client.post(TEXT, json={**REQUEST, **fields})
        assert await replayed(server) == same(tokens)


@trio_test
async def test_a_sampled_answer_is_the_same_again() -> None:
    async with serving(never_ends(), replay_ring=2) as server:
        # So hot that any other seed gives another text.
        body = {**REQUEST, "temperature": 1000, "max_tokens": 50, "ignore_eos": True}
        await server.client.post(TEXT, json=body)
        assert await replayed(server) == same(50)


@trio_test
async def test_one_that_nobody_read_to_its_end_is_run_up_to_there() -> None:
    async with serving(never_ends(), replay_ring=2, context=10**6) as server:
        async with connected(server) as wire:
            await wire.send(post(STREAM))
            await wire.until(b'"text":"a"')
        with trio.fail_after(5):
            while not (kept := await listed(server)):  # noqa: ASYNC110  # no event
                await trio.sleep(0.002)
        assert kept[0]["finish_reason"] is None
        assert await replayed(server) == same(kept[0]["completion_tokens"])


@pytest.mark.parametrize(
    ("now", "where"), [("one2two", 3), ("one", 3), ("one two three", 7), ("", 0)]
)
@trio_test
async def test_another_answer_is_told_by_the_first_place_where_it_differs(
    now: str, where: int
) -> None:
    answers = ["one two"]
    end = miniature.end_id()

    def script(prompt: Sequence[int], generated: Sequence[int]) -> int:
        tokens = miniature.ids(answers[-1]) if answers[-1] else []
        return tokens[len(generated)] if len(generated) < len(tokens) else end

    async with serving(scripted(script), replay_ring=1) as server:
        await server.client.post(TEXT, json=REQUEST)
        answers.append(now)
        assert await replayed(server) == {
            "id": "cmpl-1",
            "same": False,
            "first_difference": where,
            "tokens": 7,
            "replayed_tokens": len(now),
        }


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_the_first_difference_ends_what_two_lists_have_in_common(
    tokens: list[int], others: list[int]
) -> None:
    index = first_difference(tokens, others)
    if index is None:
        assert tokens == others
    else:
        assert tokens[:index] == others[:index]
        assert tokens[index : index + 1] != others[index : index + 1]


@trio_test
async def test_the_last_requests_are_listed_without_their_tokens() -> None:
    async with serving(says("ok"), replay_ring=2) as server:
        for temperature in (0, 0, 1):
            await server.client.post(TEXT, json={**REQUEST, "temperature": temperature, "seed": 7})
        newest, older = await listed(server)
        assert (newest["id"], older["id"]) == ("cmpl-3", "cmpl-2")
        record = (await server.client.get("/debug/requests")).json()["requests"][0]
        assert newest == {name: record[name] for name in newest}
        assert newest.keys() == {
            "id",
            "route",
            "received",
            "prompt_tokens",
            "completion_tokens",
            "finish_reason",
            "sampling",
        }
        assert (newest["sampling"]["seed"], older["sampling"]["seed"]) == (7, None)
        gone = await server.client.post("/debug/replay/cmpl-1")
        assert gone.status_code == 404
        assert gone.json()["error"]["message"] == (
            'no request "cmpl-1" is kept for a replay; GET /debug/replay lists those that are'
        )


@trio_test
async def test_what_gave_nothing_is_not_kept() -> None:
    executor = never_ends()
    async with serving(executor, replay_ring=4, queue_depth=1) as server:
        await server.client.post(TEXT, json={**REQUEST, "top_p": 2})
        executor.gate.clear()
        with trio.move_on_after(0.05):
            await server.client.post(TEXT, json=REQUEST)
        with trio.fail_after(5):
            while len(server.service.telemetry.records) < 2:  # noqa: ASYNC110  # no event
                await trio.sleep(0.002)
        executor.gate.set()
        assert await listed(server) == []


@trio_test
async def test_a_replay_is_no_request_of_a_clients() -> None:
    async with serving(says("ok"), replay_ring=4) as server:
        await server.client.post(TEXT, json=REQUEST)
        before = (await server.client.get("/debug/requests")).json(), await listed(server)
        await replayed(server)
        assert ((await server.client.get("/debug/requests")).json(), await listed(server)) == before
        metrics = (await server.client.get("/metrics")).text
    assert "\ncaldrix_generation_tokens_total 2.0\n" in metrics


@trio_test
async def test_a_replay_waits_in_the_queue_and_is_refused_where_a_request_is() -> None:
    async with serving(never_ends(), replay_ring=1, context=10**6, queue_depth=0) as server:
        await server.client.post(TEXT, json={**REQUEST, "max_tokens": 1})
        async with connected(server) as wire:
            await wire.send(post(STREAM))
            await wire.until(b'"text":"a"')
            assert (await server.client.post("/debug/replay/cmpl-1")).status_code == 429
        await server.wait_rows_free()
        assert (await listed(server))[0]["id"] == "cmpl-2"
        server.service.engine.stop()
        assert (await server.client.post("/debug/replay/cmpl-2")).status_code == 503


@trio_test
async def test_a_replay_takes_no_settings() -> None:
    async with serving(says("ok"), replay_ring=1) as server:
        await server.client.post(TEXT, json=REQUEST)
        answer = await server.client.post("/debug/replay/cmpl-1", json={"temperature": 1})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == (
            "a replay takes no settings but those it was kept with; send no body"
        )
        assert (await server.client.post("/debug/replay/cmpl-1", json={})).is_success


@trio_test
async def test_without_a_ring_it_says_how_to_have_one() -> None:
    async with serving(says("ok")) as server:
        await server.client.post(TEXT, json=REQUEST)
        for answer in (
            await server.client.get("/debug/replay"),
            await server.client.post("/debug/replay/cmpl-1"),
        ):
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == (
                "no request is kept for a replay; start the server with --replay-ring N"
            )
