"""`caldrix models`: what is on this machine, and what a model is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import attrs
from cyclopts import App, Parameter
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.inventory import CachedModel, Summary, list_cached, summarize
from caldrix.weights.names import find

_Json = Annotated[bool, Parameter(name="--json", negative="")]

app = App(name="models", help="What models are on this machine, and what they are.")


@app.command(name="list")
def list_models(*, as_json: _Json = False) -> int:
    """List the models that can be served without the network.

    Parameters
    ----------
    as_json
        Print JSON instead of a table.
    """
    models = list_cached()
    if as_json:
        _print_json([{**attrs.asdict(model), "path": str(model.path)} for model in models])
    elif models:
        _console().print(_table(models))
    else:
        Console(stderr=True).print("no models yet; `caldrix pull smollm2` fetches a small one")
    return 0


@app.command
def show(name: str, /, *, as_json: _Json = False) -> int:
    """Show what a model on this machine is.

    Parameters
    ----------
    name
        Any name that `caldrix serve` takes.
    as_json
        Print JSON instead of lines.
    """
    resolved = find(name)
    with open_checkpoint(resolved.path) as checkpoint:
        summary = summarize(checkpoint)
    identity = {
        "name": resolved.served_name,
        "source": resolved.source,
        "path": str(resolved.path),
    }
    if as_json:
        _print_json({**identity, **attrs.asdict(summary)})
    else:
        _console().print(_lines(identity, summary))
    return 0


# How a summary's fields read, where it is not as they are.
_SHOWN: dict[str, Callable[[Any], str]] = {
    "types": lambda types: ", ".join(f"{count} {name}" for name, count in types.items()),
    "parameters": lambda count: f"{count:,}",
    "size": decimal,
    "chat_template": lambda there: "yes" if there else "no",
}


def _lines(identity: dict[str, str], summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for field, value in {**identity, **attrs.asdict(summary, recurse=False)}.items():
        shown = "not said" if value is None else _SHOWN.get(field, str)(value)
        table.add_row(field.replace("_", " "), shown)
    return table


def _table(models: list[CachedModel]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("source")
    table.add_column("size", justify="right")
    table.add_column("path", overflow="fold")
    for model in models:
        table.add_row(model.name, model.source, decimal(model.size), str(model.path))
    return table


def _console() -> Console:
    # Names and paths are not markup, and their numbers need no colour.
    return Console(markup=False, highlight=False)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
