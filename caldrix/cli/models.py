"""`caldrix models`: what is on this machine, and what a model is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import attrs
from cyclopts import App, Parameter
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from caldrix.weights.cache import require_readable
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.errors import printable
from caldrix.weights.inventory import CachedModel, list_cached, summarize
from caldrix.weights.names import find

_Json = Annotated[bool, Parameter(name="--json", negative="")]

app = App(name="models", help="What models are on this machine, and what they are.")


@app.command(name="list")
def list_models(*, as_json: _Json = False) -> int:
    """List the models that can be served without the network.

    On a terminal this is a table; elsewhere each line has a name, a source, a size in bytes and a
    path, with tabs between them.

    Parameters
    ----------
    as_json
        Print JSON instead.
    """
    require_readable()
    models = list_cached()
    if as_json:
        _print_json([{**attrs.asdict(model), "path": str(model.path)} for model in models])
    elif models:
        rows = [(model.name, model.source, model.size, model.path) for model in models]
        _print_rows(rows, _table(models))
    else:
        Console(stderr=True).print("no models yet; `caldrix pull smollm2` fetches a small one")
    return 0


@app.command
def show(name: str, /, *, as_json: _Json = False) -> int:
    """Show what a model on this machine is.

    Elsewhere than on a terminal each line has a field and its value, with a tab between them, and
    numbers are plain.

    Parameters
    ----------
    name
        Any name that `caldrix serve` takes.
    as_json
        Print JSON instead.
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
        fields = {**identity, **attrs.asdict(summary, recurse=False)}
        rows = [(_label(field), _shown(field, value, _PLAIN)) for field, value in fields.items()]
        _print_rows(rows, _lines(fields))
    return 0


# How a summary's fields read, where it is not as they are.
_PLAIN: dict[str, Callable[[Any], str]] = {
    "types": lambda types: ", ".join(f"{count} {name}" for name, count in types.items()),
    "chat_template": lambda there: "yes" if there else "no",
}
_FOR_PEOPLE: dict[str, Callable[[Any], str]] = {
    **_PLAIN,
    "parameters": lambda count: f"{count:,}",
    "size_of_tensors": decimal,
}
# A file's own words end somewhere; paths may be this long.
_LONGEST = 4096


def _label(field: str) -> str:
    return field.replace("_", " ")


def _shown(field: str, value: object, how: dict[str, Callable[[Any], str]]) -> str:
    return "not said" if value is None else printable(how.get(field, str)(value), _LONGEST)


def _lines(fields: dict[str, object]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for field, value in fields.items():
        table.add_row(_label(field), _shown(field, value, _FOR_PEOPLE))
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


def _print_rows(rows: Iterable[tuple[object, ...]], table: Table) -> None:
    """The table for a terminal; for a program the rows, a line each."""
    # Names and paths are not markup, and their numbers need no colour.
    console = Console(markup=False, highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        for row in rows:
            print(*row, sep="\t")


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
