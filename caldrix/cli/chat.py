"""The terminal chat of `caldrix run`: messages, commands, and an answer as it comes.

Ctrl-C stops an answer and not the chat; at the prompt, /exit or Ctrl-D leaves.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType

import attrs
import cattrs
import trio

from caldrix.cli.conversation import Chat
from caldrix.cli.pictures import typed_path
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.sampling_ranges import SAMPLING_RANGES, OutOfRange
from caldrix.errors import CaldrixError

_HELP = """\
/image FILE        show the model an image with the next message
/image             list the images that wait for it
/drop              forget those
/reset             forget the conversation, and the images
/set NAME VALUE    change a setting: {names}
/set               show the settings
/exit              leave (so does Ctrl-D)
Ctrl-C             stop the answer"""

PROMPT = "> "


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
    if chat.waiting:
        print(_show_waiting(chat))
    async with _interrupts() as answering:
        while True:
            line = await trio.to_thread.run_sync(read_line, abandon_on_cancel=True)
            if line is None:
                print()
                return
            command, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            if command == "/exit":
                return
            if command in _COMMANDS:
                print(_COMMANDS[command](chat, rest))
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
    if chat.waiting:
        print(_show_waiting(chat))


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


def _show_help(chat: Chat, rest: str) -> str:
    return _HELP.format(names=", ".join(_settings(chat)))


def _reset(chat: Chat, rest: str) -> str:
    chat.reset()
    return "the conversation starts anew"


def _image(chat: Chat, rest: str) -> str:
    if chat.eyes is None:
        return f"{chat.name} takes text only"
    if not rest:
        return _show_waiting(chat)
    try:
        chat.put_image(typed_path(rest))
    except CaldrixError as error:
        return str(error)
    return _show_waiting(chat)


def _show_waiting(chat: Chat) -> str:
    if not chat.waiting:
        return "no image waits; /image FILE puts one before the next message"
    return "before the next message: " + ", ".join(map(str, chat.waiting))


def _drop(chat: Chat, rest: str) -> str:
    chat.waiting = []
    return "no image waits now"


def _set(chat: Chat, rest: str) -> str:
    words = rest.split()
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


_COMMANDS: Mapping[str, Callable[[Chat, str], str]] = MappingProxyType(
    {"/help": _show_help, "/image": _image, "/drop": _drop, "/reset": _reset, "/set": _set}
)
