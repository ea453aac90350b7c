"""Two hundred clients at once, a third of whom leave half-way, against one row of a real model.

The model is a tiny random one, so that the lane, the engine and HTTP are all the real ones.
"""

from __future__ import annotations

import gc
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11
import numpy as np
import trio
from attrs import frozen

from caldrix.models.decoder import Attention, Dimensions, pre_norm_decoder
from caldrix.models.lane import Executor, LaneOptions
from caldrix.models.rope import base_frequencies
from caldrix.weights.blocks import FORMATS
from caldrix.weights.tensor import Tensor
from caldrix_cpu.numpy_executor import numpy_executor
from tests.support import miniature
from tests.support.serving import MODEL, Running, serving, trio_test

CLIENTS = 200
CONTEXT = 256
MEMORY_GROWTH = 32 * 2**20
"""More than allocators and a garbage collector's moods take; a leaked request a client would be
seen from 160 KiB each."""


@frozen
class Ask:
    """A request and what is to become of it."""

    path: str
    body: dict[str, Any]
    leaves_after: int | None
    """Bytes of the answer after which the client goes, 0 before any; None stays to the end."""


def ask(number: int) -> Ask:
    """The number's request: chat or text, streamed or not, greedy or sampled, stopped or not."""
    chat = number % 2 == 0
    content = f"question {number}"
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 4 + number % 9,
        "stream": number % 3 != 1,
        "return_token_ids": number % 4 == 0,
        **({"messages": [{"role": "user", "content": content}]} if chat else {"prompt": content}),
    }
    if number % 5 == 0:
        body |= {"temperature": 1.5, "seed": number, "top_k": 40}
    if number % 7 == 0:
        body |= {"stop": ["e", "Z"]}
    if number % 11 == 0:
        body |= {"top_p": 2}
    leaves = number % 3 == 0
    return Ask(
        "/v1/chat/completions" if chat else "/v1/completions",
        body,
        leaves_after=(number * 37) % 300 if leaves else None,
    )


@contextmanager
def tiny_model() -> Iterator[Executor]:
    """A random llama over the miniature vocabulary, on the numpy lane."""
    dims = Dimensions(
        hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, head_dim=8,
        vocab=miniature.tokenizer().vocab_size, max_context=CONTEXT, eps=1e-5, tied=True,
    )  # fmt: skip
    how = Attention(base_frequencies(10_000.0, dims.head_dim), dims.head_dim**-0.5)
    program = pre_norm_decoder("llama", dims, (how,) * dims.layers)
    random = np.random.Generator(np.random.PCG64(1))
    weights = {
        name: Tensor(
            name,
            shape,
            FORMATS["F32"],
            random.standard_normal(shape, np.float32).reshape(-1, shape[-1]).view(np.uint8),
        )
        for name, shape in program.weights.items()
    }
    with numpy_executor(program, weights, LaneOptions(CONTEXT, threads=1)) as executor:
        yield executor


async def perform(running: Running, wanted: Ask) -> tuple[int, object] | None:
    """What a client that stays sees: the status, and the choices without their ids and times.

    None for one that leaves.
    """
    body = json.dumps(wanted.body).encode()
    head = h11.Request(
        method="POST",
        target=wanted.path,
        headers=[
            ("Host", "localhost"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ],
    )
    protocol = h11.Connection(h11.CLIENT)
    status, received = 0, b""
    async with await trio.open_tcp_stream(*running.address) as connection:
        await connection.send_all(
            b"".join(
                protocol.send(event) or b""
                for event in (head, h11.Data(data=body), h11.EndOfMessage())
            )
        )
        while not isinstance(event := protocol.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                protocol.receive_data(await connection.receive_some())
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                received += event.data
            if wanted.leaves_after is not None and len(received) >= wanted.leaves_after:
                return None
    return status, choices(received, streamed=wanted.body["stream"] and status == 200)


def choices(received: bytes, *, streamed: bool) -> object:
    """An answer without what differs each time."""
    if not streamed:
        answer = json.loads(received)
        return answer.get("choices", answer)
    *events, done, nothing = received.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: "))["choices"] for event in events]


async def everyone(running: Running) -> dict[int, object]:
    """All clients at once; what each saw."""
    seen: dict[int, object] = {}

    async def one(number: int) -> None:
        seen[number] = await perform(running, ask(number))

    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(one, number)
    return seen


def resident_memory() -> int:
    """Bytes this process holds in memory, after its garbage is collected."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@trio_test
async def test_every_answer_is_right_in_company_and_nothing_is_left() -> None:
    with tiny_model() as executor:
        async with serving(executor, context=CONTEXT, queue_depth=CLIENTS) as running:
            alone = {
                number: await perform(running, wanted)
                for number in range(CLIENTS)
                if (wanted := ask(number)).leaves_after is None
            }
            assert {answer[0] for answer in alone.values() if answer} == {200, 400}
            await everyone(running)
            tasks = trio.lowlevel.current_statistics().tasks_living
            memory = resident_memory()

            for _ in range(2):
                seen = await everyone(running)
                assert {number: seen[number] for number in alone} == alone

            await running.wait_rows_free()
            assert resident_memory() - memory < MEMORY_GROWTH
            with trio.fail_after(5):
                while trio.lowlevel.current_statistics().tasks_living > tasks:  # noqa: ASYNC110  # nothing tells
                    await trio.sleep(0.05)
            assert (running.service.engine.running, running.service.engine.waiting) == (0, 0)
