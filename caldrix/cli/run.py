"""`caldrix run`: one answer with -p, or a chat in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Annotated

import trio
from cyclopts import Parameter

from caldrix.cli.chat import PROMPT, chat_loop, print_answer
from caldrix.cli.conversation import Chat
from caldrix.cli.logs import configure_logging
from caldrix.cli.opening import ModelFlags, Opened
from caldrix.cli.options import SamplingFlags, Whole, check_positive, check_text
from caldrix.cli.pictures import ImageFlags, check_spelling
from caldrix.cli.progress import TerminalProgress
from caldrix.cli.speculation import SpeculationFlags
from caldrix.cli.termination import ended_by_sigterm
from caldrix.engine.engine import Engine, running_engine
from caldrix.errors import Refusal
from caldrix.models.registry import bind
from caldrix.vision.errors import PlaceholderCount
from caldrix.vision.eyes import Eyes, find_processor
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.names import DEFAULT_MODEL, Resolved, resolve


def run(
    model: str = DEFAULT_MODEL,
    /,
    *,
    prompt: Annotated[str | None, Parameter(name=["--prompt", "-p"])] = None,
    system: str | None = None,
    images: ImageFlags | None = None,
    max_tokens: Whole | None = None,
    flags: ModelFlags | None = None,
    sampling: SamplingFlags | None = None,
    speculation: SpeculationFlags | None = None,
) -> int:
    """Answer one prompt with -p, or chat in the terminal.

    Parameters
    ----------
    model
        An alias, a directory, a .gguf file, a hub name (owner/name) or ollama:name[:tag].
    prompt
        What to answer. Without it a chat begins: /help shows its commands.
    system
        A system message to begin with.
    images
        The images that a prompt begins with.
    max_tokens
        At most so many tokens an answer; otherwise until the model ends or the context is full.
    flags
        How the model is computed.
    sampling
        How tokens are picked.
    speculation
        Whether, and how, tokens are guessed ahead.
    """
    images = images or ImageFlags()
    settings = (sampling or SamplingFlags()).settings()
    configure_logging("text")
    check_positive("--max-tokens", max_tokens)
    for flag, text in (("--prompt", prompt), ("--system", system)):
        check_text(flag, text)
    if images.image_detail is not None and prompt is not None and not images.image:
        raise Refusal("--image-detail is of no use without an image; leave it out, or add --image")
    opening = (flags or ModelFlags()).opening(speculation)
    # Before the model: a file that can't be read should not be told after a minute of loading.
    pictures = images.read()
    with ExitStack() as stack:
        with ended_by_sigterm(), TerminalProgress() as progress:
            resolved = resolve(model, progress)
            if pictures or images.image_detail is not None:
                _require_tower(resolved)
            opened = stack.enter_context(opening.open(resolved.path, alone=True, progress=progress))
        loaded = opened.model
        if loaded.template is None and (prompt is None or system is not None or pictures):
            raise Refusal(
                f"{resolved.served_name} has no chat template, so it cannot chat; "
                "use -p alone to have a text continued"
            )
        processor = find_processor(loaded, resolved.path)
        if processor is not None:
            _require_no_spelling({"--prompt": prompt, "--system": system})

        def begin(engine: Engine) -> Chat:
            return Chat(
                loaded,
                engine,
                settings,
                max_tokens,
                system,
                eyes=Eyes.of(loaded, processor),
                name=resolved.served_name,
                detail=images.detail,
                waiting=pictures,
            )

        terminated = trio.run(_run, opened, begin, prompt)
    if terminated:
        # The signal's own end: the interpreter's would wait for a line that is being read.
        signal.raise_signal(signal.SIGTERM)
    return 0


def _require_tower(resolved: Resolved) -> None:
    """Refuses images for a model that takes text only, before its weights are loaded."""
    with open_checkpoint(resolved.path) as checkpoint:
        if bind(checkpoint).tower is None:
            raise Refusal(f"{resolved.served_name} takes text only; leave out --image")


def _require_no_spelling(flags: Mapping[str, str | None]) -> None:
    for flag, text in flags.items():
        try:
            check_spelling(flag, text or "")
        except PlaceholderCount as error:
            raise Refusal(str(error)) from error


async def _run(opened: Opened, begin: Callable[[Engine], Chat], prompt: str | None) -> bool:
    """Whether SIGTERM ended it."""
    model, speculation = opened.model, opened.speculation
    async with trio.open_nursery() as nursery:
        await nursery.start(_cancel_on_sigterm, nursery.cancel_scope)
        async with running_engine(
            model.executor,
            context=model.context,
            speculator=None if speculation is None else speculation.speculator,
        ) as engine:
            chat = begin(engine)
            if prompt is not None:
                await print_answer(chat, prompt)
            else:
                await chat_loop(chat, _read_line)
        nursery.cancel_scope.cancel()
        return False
    return True


async def _cancel_on_sigterm(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


def _read_line() -> str | None:
    try:
        # Lines that come from a file need no asking.
        return input(PROMPT if sys.stdin.isatty() else "")
    except EOFError:
        return None
