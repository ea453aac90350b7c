"""Records of the most recent requests: counts and settings, never text."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import frozen

from caldrix_conformance.answers import Answer, Completion, JsonObject, Streamed
from caldrix_conformance.contracts.caldrix.records import (
    MOST_KEPT,
    PATH,
    RECORD,
    Record,
    let_it_be_recorded,
    record_of,
    records,
    records_in,
    settings_of,
    texts_in,
)
from caldrix_conformance.contracts.caldrix.speculation import REPETITIVE
from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.shapes import expect_shape
from caldrix_conformance.tables import both_endpoints
from caldrix_conformance.target import ABSENT, Target
from caldrix_conformance.waiting import eventually

PROMPT = "Once upon a time"
LENGTH = 8
HOT = 2.0
SETTINGS = {
    "temperature": 0.75,
    "top_k": 40,
    "top_p": 0.875,
    "min_p": 0.125,
    "repetition_penalty": 1.25,
    "seed": 7,
}
COUNTS = ("prompt_tokens", "completion_tokens")


@frozen
class Recorded:
    """A request that was answered, its record, and the seconds that it took."""

    completion: Completion
    record: Record
    seconds: float


@pytest.fixture(scope="session")
def greedy(target: Target, some_endpoint: Endpoint) -> Recorded:
    began = time.monotonic()
    answer = target.complete(some_endpoint, **some_endpoint.prompt(PROMPT), max_tokens=LENGTH)
    seconds = time.monotonic() - began
    return Recorded(answer, record_of(target, answer), seconds)


@pytest.fixture(scope="session")
def streamed(target: Target, some_endpoint: Endpoint) -> Streamed:
    options = {"include_usage": True}
    prompt = some_endpoint.prompt(PROMPT)
    return target.stream(some_endpoint, **prompt, max_tokens=LENGTH, stream_options=options)


def sampled(target: Target, endpoint: Endpoint, **fields: Any) -> Completion:
    fields = {"max_tokens": LENGTH, "temperature": HOT, **endpoint.prompt(PROMPT), **fields}
    return target.complete(endpoint, **fields)


def json_of(answer: Answer) -> Any:
    """The JSON value that the records come as."""
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise AssertionError(f"the body is not JSON; {answer.seen}") from None


@checks("telemetry.json")
def test_json(target: Target) -> None:
    answer = target.get(PATH).expect(200)
    seen = answer.headers.get("content-type", "")
    assert seen.partition(";")[0].strip() == "application/json", f"content-type is {seen!r}"
    json_of(answer)


@checks("telemetry.requests")
def test_requests(target: Target, some_endpoint: Endpoint) -> None:
    let_it_be_recorded(target, target.complete(some_endpoint))
    listed = records_in(target.get(PATH))
    assert listed, "no record of a request that was answered"
    for record in listed:
        assert isinstance(record, dict), f"a record is {record!r}"


@checks("telemetry.recent")
def test_recent(target: Target, some_endpoint: Endpoint) -> None:
    record_of(target, target.complete(some_endpoint, max_tokens=2))


@checks("telemetry.order")
def test_order(target: Target, some_endpoint: Endpoint) -> None:
    older, newer = (record_of(target, target.complete(some_endpoint)) for _ in range(2))
    ids = [record.get("id") for record in records(target)]
    places = ids.index(newer["id"]), ids.index(older["id"])
    assert places[0] < places[1], f"the newer of two records is number {places[0]}, not before"


def expect_counts(record: Record, wanted: dict[str, int]) -> None:
    seen = {name: record.get(name) for name in COUNTS}
    assert seen == wanted, f"the record has {seen}, the answer's usage {wanted}"


@checks("telemetry.counts")
def test_counts(greedy: Recorded) -> None:
    usage = greedy.completion.usage
    expect_counts(greedy.record, {name: getattr(usage, name) for name in COUNTS})


@checks("telemetry.streamed")
def test_streamed(target: Target, streamed: Streamed) -> None:
    usage = streamed.usage
    wanted = {name: getattr(usage, name) for name in COUNTS}
    expect_counts(record_of(target, streamed), wanted)


@checks("telemetry.record.members")
def test_members(greedy: Recorded) -> None:
    expect_shape(greedy.record, RECORD, "the record")


@checks("telemetry.record.route")
@both_endpoints
def test_route(target: Target, endpoint: Endpoint) -> None:
    seen = record_of(target, target.complete(endpoint)).get("route")
    assert seen == endpoint.path, f"route is {seen!r}, asked was {endpoint.path}"


def number_in(record: Record, name: str) -> float:
    """A member of a record, which must be a number."""
    value = record.get(name)
    assert isinstance(value, int | float), f"{name} is {value!r}"
    assert not isinstance(value, bool), f"{name} is {value!r}"
    return value


@checks("telemetry.record.received")
def test_received(greedy: Recorded) -> None:
    seen, created = number_in(greedy.record, "received"), greedy.completion.body.get("created")
    assert isinstance(created, int), f"the answer's created is {created!r}"
    assert -60 < seen - created < 60, f"received is {seen}, the answer was created at {created}"


@checks("telemetry.record.phases")
def test_phases(greedy: Recorded) -> None:
    phases = [number_in(greedy.record, name) for name in ("queue_ms", "prefill_ms", "decode_ms")]
    took = greedy.seconds * 1000
    assert min(phases) >= 0, f"the phases are {phases}"
    assert sum(phases) <= took, f"the phases are {phases} ms, the request took {took:.1f} ms"


@checks("telemetry.record.cached")
def test_cached(greedy: Recorded) -> None:
    cached, most = greedy.record.get("cached_tokens"), greedy.completion.usage.prompt_tokens
    assert isinstance(cached, int), f"cached_tokens is {cached!r}"
    assert 0 <= cached <= most, f"cached_tokens is {cached} of {most} prompt tokens"


@checks("telemetry.record.finish-reason")
def test_finish_reason(target: Target, some_endpoint: Endpoint, greedy: Recorded) -> None:
    text = greedy.completion.text
    stop = text[len(text) // 2 :][:2]
    prompt = some_endpoint.prompt(PROMPT)
    stopped = target.complete(some_endpoint, **prompt, max_tokens=LENGTH, stop=stop or None)
    for answer, record in (
        (greedy.completion, greedy.record),
        (stopped, record_of(target, stopped)),
    ):
        seen, wanted = record.get("finish_reason"), answer.finish_reason
        assert seen == wanted, f"finish_reason is {seen!r}, the answer's is {wanted!r}"


@checks("telemetry.record.status")
def test_status(greedy: Recorded) -> None:
    seen = greedy.record.get("status")
    assert seen == 200, f"status is {seen!r}"


def refuse(target: Target, endpoint: Endpoint) -> None:
    target.ask(endpoint, temperature=-1).expect(400)


@checks("telemetry.record.refused")
def test_refused(target: Target, some_endpoint: Endpoint) -> None:
    record_of(target, target.complete(some_endpoint))
    refuse(target, some_endpoint)
    recorded = eventually(lambda: records(target)[0].get("status") == 400)
    assert recorded, "the newest record is not that of the request that was refused last"
    newest = records(target)[0]
    seen = {name: newest.get(name) for name in (*COUNTS, "finish_reason")}
    assert seen == dict.fromkeys(seen), f"a refused request's record has {seen}"


@checks("telemetry.record.lane")
def test_lane(greedy: Recorded) -> None:
    lane = greedy.record.get("lane")
    assert isinstance(lane, str), f"lane is {lane!r}"
    assert lane, "lane is empty"


@checks("telemetry.record.speculative")
def test_speculative(target: Target) -> None:
    answer = target.completions(prompt=REPETITIVE, max_tokens=24)
    seen, wanted = (
        record_of(target, answer).get("speculative"),
        answer.body["usage"].get("speculative"),
    )
    assert seen == wanted, f"speculative is {seen}, the answer's is {wanted}"


@checks("telemetry.record.plain")
def test_plain(target: Target, some_endpoint: Endpoint) -> None:
    """A single token can't be guessed ahead of others, and a seeded draw never is."""
    record = record_of(target, sampled(target, some_endpoint, max_tokens=1, seed=7))
    assert "speculative" in record, f"the record has no speculative: {sorted(record)}"
    seen = record["speculative"]
    assert seen is None, f"speculative is {seen!r}"


def settings_used(target: Target, answer: Completion) -> dict[str, Any]:
    return dict(settings_of(record_of(target, answer)))


@checks("telemetry.sampling.settings")
@both_endpoints
def test_settings(target: Target, endpoint: Endpoint) -> None:
    used = settings_used(target, sampled(target, endpoint, max_tokens=1, **SETTINGS))
    seen = {name: used.get(name) for name in SETTINGS}
    assert seen == SETTINGS, f"the record has {seen}, asked were {SETTINGS}"


@checks("telemetry.sampling.defaults")
def test_defaults(target: Target, some_endpoint: Endpoint) -> None:
    used = settings_used(target, target.complete(some_endpoint, temperature=ABSENT))
    missing = [name for name in SETTINGS if name != "seed" and used.get(name) is None]
    assert not missing, f"the record of a request without settings has no {', '.join(missing)}"


@checks("telemetry.sampling.seed")
@pytest.mark.parametrize("seed", [7, 0, 2**32, ABSENT, -1, None])
def test_seed(target: Target, some_endpoint: Endpoint, seed: object) -> None:
    answer = sampled(target, some_endpoint, max_tokens=1, seed=seed)
    seen = settings_used(target, answer).get("seed")
    assert type(seen) is int, f"the seed used is {seen!r}"
    drawn = seed in (ABSENT, -1, None)
    assert seen >= 0 if drawn else seen == seed, f"the seed used is {seen}, asked for was {seed}"


@checks("telemetry.sampling.fresh")
def test_fresh(target: Target, some_endpoint: Endpoint) -> None:
    first, second = (
        settings_used(target, sampled(target, some_endpoint, max_tokens=1)).get("seed")
        for _ in range(2)
    )
    assert first != second, f"two requests without a seed both used {first!r}"


@checks("telemetry.sampling.greedy")
def test_greedy_seed(greedy: Recorded) -> None:
    settings = settings_of(greedy.record)
    assert "seed" in settings, f"the settings have no seed: {sorted(settings)}"
    assert settings["seed"] is None, f"a greedy request used the seed {settings['seed']!r}"


@checks("telemetry.sampling.reproduced")
@both_endpoints
@pytest.mark.parametrize("fields", [{}, {"seed": -1, "top_k": 20, "top_p": 0.9}])
def test_reproduced(target: Target, endpoint: Endpoint, fields: JsonObject) -> None:
    answer = sampled(target, endpoint, **fields)
    used = settings_used(target, answer)
    given = {name: used[name] for name in SETTINGS if used.get(name) is not None}
    again = sampled(target, endpoint, **given)
    assert again.text == answer.text, f"{answer.text!r}; with {given} {again.text!r}"


@checks("telemetry.itself")
def test_itself(target: Target) -> None:
    before, after = (len(records(target)) for _ in range(2))
    newest = [record.get("route") for record in records(target)][:1]
    assert after <= before, f"{before} records, and {after} after they were looked at"
    assert newest != [PATH], f"the newest record is of {PATH} itself"


@frozen
class Crowd:
    """What is left of a record after as many newer ones as may stay, and how many then are."""

    answer_id: object
    ids_before: Sequence[object]
    count_after: int


@pytest.fixture(scope="session")
def crowd(target: Target, some_endpoint: Endpoint) -> Crowd:
    record = record_of(target, target.complete(some_endpoint))
    for _ in range(MOST_KEPT - 1):
        refuse(target, some_endpoint)
    ids = [one.get("id") for one in records(target)]
    for _ in range(2):
        refuse(target, some_endpoint)
    return Crowd(record["id"], ids, len(records(target)))


@checks("telemetry.least")
def test_stays(crowd: Crowd) -> None:
    assert crowd.answer_id in crowd.ids_before, (
        f"a record was gone after {MOST_KEPT - 1} requests more"
    )


@checks("telemetry.most")
def test_most(crowd: Crowd) -> None:
    assert crowd.count_after <= MOST_KEPT, f"{crowd.count_after} records"


WORD = "zyzzyvaxolotl"
"""Of no text but these cases', each with an ending of its own."""


def expect_no_trace(target: Target, *texts: str) -> None:
    """Look for ``texts`` in what the records spell, and in the bytes that they came in."""
    answer = target.get(PATH).expect(200)
    raw = answer.body.decode("utf-8", "replace")
    spelled = "\n".join(texts_in(json_of(answer)))
    for text in texts:
        assert text not in raw, f"the records hold {text!r}"
        assert text not in spelled, f"the records hold {text!r}"


@checks("telemetry.text.prompt")
@both_endpoints
def test_no_prompt(target: Target, endpoint: Endpoint) -> None:
    prompt = endpoint.prompt(f"Tell me of the {WORD}-prompt in the garden.")
    let_it_be_recorded(target, target.complete(endpoint, **prompt))
    let_it_be_recorded(target, target.stream(endpoint, **prompt))
    expect_no_trace(target, f"{WORD}-prompt", "in the garden")


@checks("telemetry.text.answer")
@both_endpoints
def test_no_answer(target: Target, endpoint: Endpoint) -> None:
    answer = target.complete(endpoint, **endpoint.prompt(PROMPT), max_tokens=LENGTH)
    let_it_be_recorded(target, answer)
    text = answer.text.strip()
    if len(text) < 8:
        pytest.skip(f"the answer {text!r} is too short to be looked for")
    expect_no_trace(target, text)


@checks("telemetry.text.fields")
def test_no_fields(target: Target, some_endpoint: Endpoint) -> None:
    fields = dict.fromkeys(("stop", "user", "x_no_such_field"), f"{WORD}-field")
    let_it_be_recorded(target, target.complete(some_endpoint, **fields))
    expect_no_trace(target, f"{WORD}-field")


REFUSED: list[JsonObject] = [
    {"model": f"{WORD}-refused"},
    {"top_p": f"{WORD}-refused"},
    {"tools": [f"{WORD}-refused"]},
    {"stop": [f"{WORD}-refused" * 20]},
]


@checks("telemetry.text.refused")
@pytest.mark.parametrize("fields", REFUSED)
def test_nothing_refused(target: Target, some_endpoint: Endpoint, fields: JsonObject) -> None:
    target.ask(some_endpoint, **fields).expect(400)
    # A record made late would be there once a later one is.
    let_it_be_recorded(target, target.complete(some_endpoint))
    expect_no_trace(target, f"{WORD}-refused")


@checks("telemetry.text.ids")
def test_no_ids(target: Target, greedy: Recorded) -> None:
    for name, value in greedy.record.items():
        is_ids = isinstance(value, list) and any(type(item) is int for item in value)
        assert not is_ids, f"a record's {name} is {json.dumps(value)}"
