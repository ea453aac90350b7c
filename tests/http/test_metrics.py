"""The metrics: what each of them counts, and what it doesn't."""

from __future__ import annotations

from functools import partial

import trio
from attrs import frozen

from caldrix.http.metrics import CONTENT_TYPE
from caldrix_conformance.metrics import read_lines, read_metrics
from tests.support import miniature
from tests.support.scripted import endless
from tests.support.serving import MODEL, Running, never_ends, says, scripted, serving, trio_test
from tests.support.wire import TEXT, connected, post

REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}
PROMPT_TOKENS = 2

KINDS = {
    "e2e_request_latency_seconds": "histogram",
    "generation_tokens_total": "counter",
    "kv_cache_usage_ratio": "gauge",
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "prefix_cache_hits_total": "counter",
    "prefix_cache_queries_total": "counter",
    "prompt_tokens_total": "counter",
    "request_queue_time_seconds": "histogram",
    "request_success_total": "counter",
    "spec_decode_num_accepted_tokens_total": "counter",
    "spec_decode_num_draft_tokens_total": "counter",
    "time_per_output_token_seconds": "histogram",
    "time_to_first_token_seconds": "histogram",
}
PER_ANSWER = (
    "time_to_first_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
)


@frozen
class Page:
    """The samples by name, without caldrix_ and with their labels but for buckets'."""

    kinds: dict[str, str]
    samples: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.samples[name]


async def look(server: Running) -> Page:
    answer = await server.client.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE
    metrics = read_metrics(read_lines(answer.content)).values()
    return Page(
        {metric.name.removeprefix("caldrix_"): metric.kind for metric in metrics},
        {
            str(sample).removeprefix("caldrix_"): sample.value
            for metric in metrics
            for sample in metric.samples
        },
    )


def nothing_but(page: Page, **grown: float) -> None:
    """Every counter is 0 but those."""
    counted = {
        name: value
        for name, value in page.samples.items()
        if value and "_seconds" not in name and page.kinds.get(name.split("{")[0]) == "counter"
    }
    assert counted == grown


@trio_test
async def test_every_metric_is_there_from_the_start_and_is_0() -> None:
    async with serving(says("ok")) as server:
        page = await look(server)
    assert page.kinds == KINDS
    assert set(page.samples.values()) == {0.0}
    assert {
        'request_success_total{finish_reason="stop"}',
        'request_success_total{finish_reason="length"}',
    } <= page.samples.keys()


@trio_test
async def test_an_answer_counts_whole_or_streamed() -> None:
    async with serving(says("hello")) as server:
        await server.client.post(TEXT, json=REQUEST)
        await server.client.post(TEXT, json={**STREAM, "max_tokens": 3})
        page = await look(server)
    assert page["prompt_tokens_total"] == page["prefix_cache_queries_total"] == 2 * PROMPT_TOKENS
    # The second prompt was there already, but for the token that is always computed.
    assert page["prefix_cache_hits_total"] == PROMPT_TOKENS - 1
    assert page["generation_tokens_total"] == 5 + 3
    assert page['request_success_total{finish_reason="stop"}'] == 1
    assert page['request_success_total{finish_reason="length"}'] == 1
    assert [page[name] for name in PER_ANSWER] == [2, 2, 2]
    assert page["time_per_output_token_seconds_count"] == 4 + 2
    assert 0 < page["time_per_output_token_seconds_sum"] < page["e2e_request_latency_seconds_sum"]
    assert page["time_to_first_token_seconds_sum"] < page["e2e_request_latency_seconds_sum"]


@trio_test
async def test_an_answer_without_a_token_counts_as_well() -> None:
    async with serving(says("")) as server:
        answer = await server.client.post(TEXT, json=REQUEST)
        assert answer.json()["usage"]["completion_tokens"] == 0
        page = await look(server)
    assert [page[name] for name in PER_ANSWER] == [1, 1, 1]
    assert page["prompt_tokens_total"] == PROMPT_TOKENS
    assert page["time_per_output_token_seconds_count"] == 0


@trio_test
async def test_the_time_in_the_queue_is_that_of_waiting_for_a_row() -> None:
    async with serving(never_ends(), context=10**4) as server:
        async with connected(server) as running, trio.open_nursery() as nursery:
            await running.send(post(STREAM))
            await running.until(b'"text":"a"')
            nursery.start_soon(partial(server.client.post, TEXT, json=REQUEST))
            await server.wait_busy(running=1, waiting=1)
            began = trio.current_time()
            await trio.sleep(0.05)
            waited = trio.current_time() - began
            await running.stream.aclose()
        page = await look(server)
        (record, _) = (await server.client.get("/debug/requests")).json()["requests"]
    # The other one has left: what it waited is in no histogram of answers.
    assert page["request_queue_time_seconds_count"] == 1
    assert page["request_queue_time_seconds_sum"] >= waited
    assert record["queue_ms"] >= 1000 * waited


@trio_test
async def test_what_runs_and_what_waits_is_told_while_it_does() -> None:
    async with serving(never_ends(), context=10**4, queue_depth=1) as server:
        async with connected(server) as running, connected(server) as waiting:
            await running.send(post(STREAM))
            await running.until(b'"text":"a"')
            await waiting.send(post(REQUEST))
            with trio.fail_after(5):
                while not server.service.engine.waiting:  # noqa: ASYNC110  # no event
                    await trio.sleep(0.002)
            page = await look(server)
            assert (page["num_requests_running"], page["num_requests_waiting"]) == (1, 1)
            assert 0 < page["kv_cache_usage_ratio"] <= 1
        await server.wait_rows_free()
        page = await look(server)
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio")
    assert [page[name] for name in gauges] == [0, 0, 0]


@trio_test
async def test_one_that_left_counts_what_was_computed_and_no_answer() -> None:
    async with serving(never_ends()) as server:
        async with connected(server) as wire:
            await wire.send(post(STREAM))
            await wire.until(b'"text":"a"')
        telemetry = server.service.telemetry
        with trio.fail_after(5):
            while not telemetry.records:  # noqa: ASYNC110  # no event
                await trio.sleep(0.002)
        page = await look(server)
        counts = telemetry.records[0].counts
    assert counts is not None
    assert counts.completion > 0
    nothing_but(
        page,
        prompt_tokens_total=PROMPT_TOKENS,
        prefix_cache_queries_total=PROMPT_TOKENS,
        generation_tokens_total=counts.completion,
    )
    assert [page[name] for name in PER_ANSWER] == [0, 0, 0]


@trio_test
async def test_one_whose_prompt_was_not_computed_counts_nothing() -> None:
    async with serving(scripted(endless(miniature.ids("a")[0]), fail_at=(1,))) as server:
        assert (await server.client.post(TEXT, json=REQUEST)).status_code == 500
        assert (await server.client.post(TEXT, json={**REQUEST, "top_p": 2})).status_code == 400
        page = await look(server)
    nothing_but(page)
    assert [page[name] for name in PER_ANSWER] == [0, 0, 0]


@trio_test
async def test_servers_of_one_process_count_each_for_itself() -> None:
    async with serving(says("ok")) as busy, serving(says("ok")) as idle:
        await busy.client.post(TEXT, json=REQUEST)
        assert (await look(busy))["prompt_tokens_total"] == PROMPT_TOKENS
        nothing_but(await look(idle))
