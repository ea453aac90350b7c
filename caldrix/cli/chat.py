"""The terminal chat of `caldrix run`: messages, commands, and an answer as it comes.

Ctrl-C stops an answer and not the chat; at the prompt, /exit or Ctrl-D leaves.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType

import attrs
import cattrs
import trio

from caldrix.engine.engine import Engine, GenerationRequest
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.sampling_ranges import SAMPLING_RANGES, OutOfRange
from caldrix.errors import CaldrixError
from caldrix.models.loading import TextModel
from caldrix.text.assembler import TextAssembler
from caldrix.text.template import render_chat

_HELP = """\
/reset             forget the conversation
/set NAME VALUE    change a setting: {names}
/set               show the settings
/exit              leave (so does Ctrl-D)
Ctrl-C             stop the answer"""

PROMPT = "> "

Message = Mapping[str, str]


@attrs.define(eq=False)
class Chat:
    """A conversation with a model, and how its answers are sampled."""

    model: TextModel
    engine: Engine
    sampling: SamplingSettings
    max_tokens: int | None = None
    system: str | None = None
    messages: list[Message] = attrs.field(factory=list)

    def reset(self) -> None:
        """Forgets the conversation; the system text stays."""
        self.messages = []

    async def answer(self, text: str) -> AsyncGenerator[str, None]:
        """The model's answer to ``text``, as it comes; both join the conversation.

        What was said before a stop by the user is kept. A model without a chat template
        continues ``text`` instead, and keeps nothing.
        """
        template = self.model.template
        if template is None:
            async with aclosing(self._generate(self.model.tokenizer.encode(text))) as pieces:
                async for piece in pieces:
                    yield piece
            return
        asked: Message = {"role": "user", "content": text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        rendered = render_chat(template, [*system, *self.messages, asked])
        prompt = self.model.tokenizer.encode_prompt(rendered.text)
        said: list[str] = []
        try:
            async with aclosing(self._generate(prompt)) as pieces:
                async for piece in pieces:
                    said.append(piece)
                    yield piece
        finally:
            if said:
                self.messages += [asked, {"role": "assistant", "content": "".join(said)}]

    async def _generate(self, prompt: list[int]) -> AsyncGenerator[str, None]:
        tokenizer = self.model.tokenizer
        assembler = TextAssembler(tokenizer)
        request = GenerationRequest(
            tuple(prompt), self.max_tokens, self.sampling, tokenizer.end_ids
        )
        async with self.engine.submit(request) as generation:
            async for token in generation:
                if piece := assembler.push(token):
                    yield piece
        if tail := assembler.finish():
            yield tail


async def print_answer(chat: Chat, text: str) -> None:
    """Writes an answer to stdout as it comes, and a line end after it."""
    async with aclosing(chat.answer(text)) as pieces:
        async for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


async def chat_loop(chat: Chat, read_line: Callable[[], str | None]) -> None:
    """Reads lines and answers them until /exit or the end of input (None)."""
    print("/help shows the commands")
    async with _interrupts() as answering:
        while True:
            line = await trio.to_thread.run_sync(read_line, abandon_on_cancel=True)
            if line is None:
                print()
                return
            command, _, rest = line.strip().partition(" ")
            if command == "/exit":
                return
            if command in _COMMANDS:
                print(_COMMANDS[command](chat, rest.split()))
            elif command.startswith("/"):
                print(f"{command} is no command; /help shows them")
            elif line.strip():
                await _answer(chat, line, answering)


class _Answering:
    """The scope of the answer being written, for Ctrl-C to cancel."""

    def __init__(self) -> None:
        self.scope: trio.CancelScope | None = None

    def stop(self) -> None:
        if self.scope is None:
            print(f"\n/exit or Ctrl-D leaves\n{PROMPT}", end="", flush=True)
        else:
            self.scope.cancel()


async def _answer(chat: Chat, line: str, answering: _Answering) -> None:
    with trio.CancelScope() as answering.scope:
        try:
            await print_answer(chat, line)
        except CaldrixError as error:
            print(f"\n{error}")
    if answering.scope.cancelled_caught:
        print(" (stopped)")
    answering.scope = None


@asynccontextmanager
async def _interrupts() -> AsyncIterator[_Answering]:
    """Ctrl-C stops the answer of the value, while the block lasts."""
    answering = _Answering()

    async def watch(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                answering.stop()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        yield answering
        nursery.cancel_scope.cancel()


def _show_help(chat: Chat, words: list[str]) -> str:
    return _HELP.format(names=", ".join(_settings(chat)))


def _reset(chat: Chat, words: list[str]) -> str:
    chat.reset()
    return "the conversation starts anew"


def _set(chat: Chat, words: list[str]) -> str:
    if not words:
        return "\n".join(f"{name} {value}" for name, value in _settings(chat).items())
    if len(words) != 2:
        return "/set takes a name and a value, as in /set temperature 0.7"
    name, text = words
    if name not in SAMPLING_RANGES:
        return f"{name} is no setting; there are {', '.join(SAMPLING_RANGES)}"
    try:
        number = SAMPLING_RANGES[name].check(_number(text))
    except OutOfRange as error:
        return f"{name} {error}"
    settings = {**_settings(chat), name: _setting(name, number)}
    chat.sampling = cattrs.structure(settings, SamplingSettings)
    return f"{name} is {number} now"


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _setting(name: str, number: float) -> float | None:
    """-1 draws a fresh seed, and keeps every token."""
    if number == -1:
        return None if name == "seed" else 0
    return number


def _settings(chat: Chat) -> Mapping[str, object]:
    return attrs.asdict(chat.sampling)


_COMMANDS: Mapping[str, Callable[[Chat, list[str]], str]] = MappingProxyType(
    {"/help": _show_help, "/reset": _reset, "/set": _set}
)
