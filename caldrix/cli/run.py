"""`caldrix run`: one answer with -p, or a chat in the terminal."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from typing import Annotated

import trio
from cyclopts import Parameter

from caldrix.cli.chat import PROMPT, Chat, chat_loop, print_answer
from caldrix.cli.logs import configure_logging
from caldrix.cli.options import (
    DtypeFlag,
    KvDtypeFlag,
    SamplingFlags,
    Whole,
    check_positive,
    check_text,
    read_size,
    read_threads,
)
from caldrix.cli.progress import TerminalProgress
from caldrix.cli.speculation import SpeculationFlags
from caldrix.cli.termination import ended_by_sigterm
from caldrix.engine.engine import running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.speculation.opening import open_speculation
from caldrix.engine.speculation.settings import settle
from caldrix.engine.speculation.speculator import Speculator
from caldrix.errors import Refusal
from caldrix.models.lane import find_lane
from caldrix.models.loading import TextModel, load_model
from caldrix.weights.names import DEFAULT_MODEL, resolve


def run(
    model: str = DEFAULT_MODEL,
    /,
    *,
    prompt: Annotated[str | None, Parameter(name=["--prompt", "-p"])] = None,
    system: str | None = None,
    max_tokens: Whole | None = None,
    backend: str = "auto",
    dtype: DtypeFlag = "auto",
    kv_dtype: KvDtypeFlag = "auto",
    weight_budget: str | None = None,
    context: Whole | None = None,
    threads: str = "auto",
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
    max_tokens
        At most so many tokens an answer; otherwise until the model ends or the context is full.
    backend
        The lane to run on.
    dtype
        How weights are kept in memory; auto is the lane's own choice for the model's files.
    kv_dtype
        How the keys and values of the context are kept; auto is the lane's own choice.
    weight_budget
        At most so much of the weights stays in memory, such as 500M, 2G or 1.5GiB; no limit if
        not given.
    context
        Positions for prompt and answers together.
    threads
        Threads to compute with: auto, or a number.
    sampling
        How tokens are picked.
    speculation
        Whether, and how, tokens are guessed ahead.
    """
    settings = (sampling or SamplingFlags()).settings()
    guessing = (speculation or SpeculationFlags()).settings()
    configure_logging("text")
    check_positive("--max-tokens", max_tokens)
    for flag, text in (("--prompt", prompt), ("--system", system)):
        check_text(flag, text)
    check_positive("--context", context, least=2)
    thread_count = read_threads(threads)
    budget = None if weight_budget is None else read_size("--weight-budget", weight_budget)
    lane = find_lane(backend)
    guessing = settle(guessing, lane, max_batch=1, weight_budget=budget)
    with ExitStack() as stack:
        with ended_by_sigterm(), TerminalProgress() as progress:
            resolved = resolve(model, progress)
            loaded = stack.enter_context(
                load_model(
                    resolved.path,
                    lane=lane,
                    context=context,
                    threads=thread_count,
                    dtype=dtype,
                    kv_dtype=kv_dtype,
                    weight_budget=budget,
                    progress=progress,
                )
            )
            opened = stack.enter_context(
                open_speculation(
                    guessing,
                    loaded,
                    path=resolved.path,
                    lane=lane,
                    threads=thread_count,
                    progress=progress,
                )
            )
        if loaded.template is None and (prompt is None or system is not None):
            raise Refusal(
                f"{resolved.served_name} has no chat template, so it cannot chat; "
                "use -p alone to have a text continued"
            )
        speculator = None if opened is None else opened.speculator
        terminated = trio.run(_run, loaded, speculator, settings, prompt, system, max_tokens)
    if terminated:
        # The signal's own end: the interpreter's would wait for a line that is being read.
        signal.raise_signal(signal.SIGTERM)
    return 0


async def _run(
    model: TextModel,
    speculator: Speculator | None,
    sampling: SamplingSettings,
    prompt: str | None,
    system: str | None,
    max_tokens: int | None,
) -> bool:
    """Whether SIGTERM ended it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_cancel_on_sigterm, nursery.cancel_scope)
        async with running_engine(
            model.executor, context=model.context, speculator=speculator
        ) as engine:
            chat = Chat(model, engine, sampling, max_tokens, system)
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
