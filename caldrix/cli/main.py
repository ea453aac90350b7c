"""The ``caldrix`` command: its subcommands, and how a failure ends it.

Exit statuses: 0 done, 1 failed while running, 2 wrong usage or a refusal at start, which is named
on stderr in one line that says what to do.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from cyclopts import App, CycloptsError

from caldrix.errors import CaldrixError, Refusal

FAILED = 1
REFUSED = 2

_FORESEEN = (CycloptsError, CaldrixError, KeyboardInterrupt, OSError)

# By name, so that a command imports only what it needs; so its summary stands here too.
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("caldrix.cli.serve:serve", "Serve a model over HTTP, until Ctrl-C or SIGTERM."),
    "run": ("caldrix.cli.run:run", "Answer one prompt with -p, or chat in the terminal."),
    "pull": ("caldrix.cli.pull:pull", "Fetch a model into the cache and print where it is."),
    "models": ("caldrix.cli.models:app", "What models are on this machine, and what they are."),
    "doctor": ("caldrix.cli.doctor:doctor", "Show lanes, cores, CPU features, memory, the cache."),
    "bench": ("caldrix.cli.bench:bench", "Time a model on this machine, beside its memory."),
    "conformance": (
        "caldrix.cli.conformance:conformance",
        "Judge a server by the clauses of its contract, whoever wrote it.",
    ),
    "spec": (
        "caldrix.cli.spec:app",
        "List a contract's clauses, what a run tests of them, and what changed since a revision.",
    ),
}


def build_app() -> App:
    """The command line, with every subcommand."""
    app = App(
        name="caldrix",
        help="Serve a language model on this machine, with its documentation kept.",
        version=version("caldrix"),
        suppress_keyboard_interrupt=False,
        help_format="markdown",
    )
    for name, (target, summary) in _COMMANDS.items():
        app.command(target, name=name, help=summary)
    return app


def execute(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit status."""
    try:
        status = build_app()(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except (*_FORESEEN, BaseExceptionGroup) as error:
        return _end(error)
    return status if isinstance(status, int) else 0


def main() -> None:
    """The console script."""
    _open_what_is_closed()
    # A terminal that cannot show a character shows a question mark instead.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(execute(sys.argv[1:]))


def _open_what_is_closed() -> None:
    """Python has None for a standard stream that was closed; to a command it is just empty."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for the whole process


def _end(error: BaseException) -> int:
    """The exit status of an error that was foreseen, said in a line; others go on."""
    match _alone(error):
        case CycloptsError() as usage:
            command = " ".join(["caldrix", *(usage.command_chain or ())])
            return _say(REFUSED, f"{str(usage).rstrip('.')}; see `{command} --help`")
        case Refusal() as refusal:
            return _say(REFUSED, str(refusal))
        case CaldrixError() as failure:
            return _say(FAILED, str(failure))
        case KeyboardInterrupt():
            return _say(FAILED, "interrupted")
        case BrokenPipeError():
            _discard_output()
            return FAILED
        case OSError() as failure:
            _discard_output()
            return _say(FAILED, str(failure))
        case _:
            raise error


def _discard_output() -> None:
    """What is still buffered can't be written, and must not be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _alone(error: BaseException) -> BaseException:
    """The one error that a nursery, or nurseries within nurseries, put into a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error


def _say(status: int, message: str) -> int:
    line = " ".join(message.split())
    print(f"caldrix: {line}", file=sys.stderr)
    return status
