"""The terminal chat over a scripted model: commands, history, and Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from caldrix.cli.chat import chat_loop
from caldrix.cli.conversation import Chat
from caldrix.engine.engine import running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.models.builder import ProgramBuilder
from caldrix.models.loading import TextModel
from caldrix.text.template import ChatTemplate
from tests.support import miniature
from tests.support.scripted import ScriptedExecutor, endless, reply
from tests.support.serving import scripted, trio_test, wait_idle

CONTEXT = 4096


@asynccontextmanager
async def chatting(executor: ScriptedExecutor, *, template: bool = True) -> AsyncIterator[Chat]:
    tokenizer = miniature.tokenizer()
    b = ProgramBuilder("none", vocab_size=tokenizer.vocab_size, max_context=CONTEXT)
    model = TextModel(
        tokenizer=tokenizer,
        template=ChatTemplate(miniature.CHATML, "", miniature.END) if template else None,
        program=b.logits(b.select(b.embed("embedding", 1)), "embedding"),
        executor=executor,
        context=CONTEXT,
        rows=1,
    )
    async with running_engine(executor, context=CONTEXT) as engine:
        yield Chat(model, engine, SamplingSettings())


def typed(lines: Sequence[str]) -> Callable[[], str | None]:
    remaining = iter(lines)
    return lambda: next(remaining, None)


@trio_test
async def test_a_conversation_grows_and_is_forgotten() -> None:
    heard: list[str] = []

    def echo(prompt: Sequence[int], generated: Sequence[int]) -> int:
        if not generated:
            heard.append(miniature.tokenizer().decode(prompt, skip_special_tokens=False))
        return reply(miniature.ids("yes"), miniature.end_id())(prompt, generated)

    async with chatting(scripted(echo)) as chat:
        chat.system = "be brief"
        await chat_loop(chat, typed(["one", "two", "/reset", "three", "/exit", "never"]))

    def turn(role: str, text: str) -> str:
        return f"<|im_start|>{role}\n{text}<|im_end|>\n"

    system, opening = turn("system", "be brief"), "<|im_start|>assistant\n"
    first = system + turn("user", "one") + opening
    second = system + turn("user", "one") + turn("assistant", "yes") + turn("user", "two") + opening
    assert heard == [first, second, system + turn("user", "three") + opening]


@trio_test
async def test_a_model_without_a_template_continues_a_text() -> None:
    async with chatting(
        scripted(reply(miniature.ids("!"), miniature.end_id())), template=False
    ) as chat:
        assert [piece async for piece in chat.answer("hello")] == ["!"]
        assert chat.messages == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set temperature 0.7", "temperature is 0.7 now"),
        ("/set seed -1", "seed is -1 now"),
        ("/set top_p 2", "top_p must be 0 < p <= 1, got 2"),
        ("/set warmth 1", "warmth is no setting"),
        ("/set temperature hot", "temperature must be a finite number >= 0"),
        ("/set temperature", "/set takes a name and a value"),
        ("/set", "repetition_penalty 1.0"),
        ("/help", "/reset"),
        ("/nothing", "/nothing is no command"),
    ],
)
def test_commands_answer(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def converse() -> SamplingSettings:
        async with chatting(scripted(endless(0))) as chat:
            await chat_loop(chat, typed([line]))
            return chat.sampling

    sampling = trio.run(converse)
    assert said in capsys.readouterr().out
    expected = 0.7 if line == "/set temperature 0.7" else 0.0
    assert sampling == SamplingSettings(temperature=expected)


def test_interrupt_stops_the_answer_and_not_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    (token,) = miniature.ids("a")
    said: list[int] = []

    def endless_then_done(prompt: Sequence[int], generated: Sequence[int]) -> int:
        said.append(len(generated))
        if len(generated) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return token

    async def converse() -> None:
        with trio.fail_after(10):
            async with chatting(scripted(endless_then_done)) as chat:
                await chat_loop(chat, typed(["go on", "/set"]))
                assert [message.role for message in chat.messages] == ["user", "assistant"]
                assert set(chat.messages[1].text) == {"a"}
                with trio.fail_after(2):
                    await wait_idle(chat.engine)

    trio.run(converse)
    output = capsys.readouterr().out
    assert " (stopped)" in output
    assert "temperature 0.0" in output
