"""The environment chat templates run in: jinja2's immutable sandbox, with every operation metered.

The sandbox keeps a template away from Python; this adds that it always ends. Calls, operators,
filters, tests and output report to the rendering's `Allowance` through jinja2's hooks, the rest by
being rewritten (see `template_meter`). Constant folding is off, as it would run a template's
operations while it loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_unique, ignore_case, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.utils import Namespace
from markupsafe import Markup

from caldrix.text.allowance import current_allowance
from caldrix.text.errors import TemplateError
from caldrix.text.template_guards import (
    REMOVED_FILTERS,
    guard_call,
    guard_filter,
    guard_format_spec,
    guard_operator,
)
from caldrix.text.template_meter import METERS, metered, metered_dict


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What transformers gives a chat template, within an allowance."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_GenerationBlocks, loopcontrols],
            finalize=_finalize,
        )
        self.globals = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": metered_dict,
            "namespace": _TemplateNamespace,
            "raise_exception": _raise_exception,
        }
        filters = {**self.filters, "sum": _sum, "tojson": _tojson, "unique": _unique}
        self.filters = {
            name: _metered_filter(name, function)
            for name, function in filters.items()
            if name not in REMOVED_FILTERS
        } | METERS
        tests = cast("dict[str, Callable[..., Any]]", self.tests)
        self.tests = {name: _metered_test(function) for name, function in tests.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return metered(super()._parse(source, name, filename))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call that its guard allows, and measure its result."""
        allowance = current_allowance.get()
        allowance.spend(1)
        args = guard_call(allowance, obj, args, kwargs)
        return allowance.admit(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Run an operator that its guard allows, and measure its result."""
        allowance = current_allowance.get()
        guard_operator(allowance, operator, left, right)
        return allowance.admit(super().call_binop(context, operator, left, right))

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at once, instead of with an undefined value that may print as nothing."""
        raise SecurityError(
            f"access to {attribute!r} of a {type(obj).__name__} is not allowed in templates"
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` and ``str.format_map`` with the sandbox's and the allowance's checks."""
        if not isinstance(value, MethodType | BuiltinMethodType):
            return None
        text = value.__self__
        if value.__name__ not in ("format", "format_map") or not isinstance(text, str):
            return None
        formatter: SandboxedFormatter = _MeteredFormatter(self)
        if isinstance(text, Markup):
            formatter = _MeteredEscapeFormatter(self, escape=text.escape)
        by_name = value.__name__ == "format_map"

        def format_text(*args: Any, **kwargs: Any) -> str:
            if by_name:
                (kwargs,), args = args, ()
            return type(text)(formatter.vformat(text, args, kwargs))

        return format_text


class _MeteredFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        allowance = current_allowance.get()
        guard_format_spec(allowance, format_spec)
        return allowance.admit(cast("str", super().format_field(value, format_spec)))


class _MeteredEscapeFormatter(_MeteredFormatter, SandboxedEscapeFormatter):
    """The same for text marked as safe, whose fields are escaped."""


class _GenerationBlocks(Extension):
    """``{% generation %}`` marks an assistant's text for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a mutable attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # jinja2 passes its own first argument to a filter that carries this mark; wraps() copies it.
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        allowance = current_allowance.get()
        given = list(args[skipped:])
        guard_filter(name, allowance, given, kwargs)
        return allowance.admit(function(*args[:skipped], *given, **kwargs))

    return run


def _metered_test(function: Callable[..., Any]) -> Callable[..., Any]:
    # A filter such as "select" runs a test on each entry without coming back here.
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        current_allowance.get().spend(1)
        return function(*args, **kwargs)

    return run


@pass_context
def _finalize(_context: Context, value: Any) -> str:
    """What an output expression writes, measured before and after it becomes text."""
    allowance = current_allowance.get()
    if isinstance(value, str):
        return allowance.admit(value)
    if callable(value) and not isinstance(value, Undefined):
        raise SecurityError("a function cannot be written into a prompt; call it")
    allowance.weigh(value)
    return allowance.admit(str(value))


class _TemplateNamespace(Namespace):
    """A namespace that keeps no private names, and prints without what it holds."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = metered_dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the private name {name!r} in templates")


@jinja2.pass_environment
def _unique(
    environment: TemplateEnvironment,
    value: Any,
    case_sensitive: bool = False,
    attribute: str | int | None = None,
) -> Any:
    """Jinja's ``unique``, its keys checked before they are hashed into one table."""
    entries = list(value)
    key = make_attrgetter(
        environment, attribute, postprocess=None if case_sensitive else ignore_case
    )
    current_allowance.get().hashed(map(key, entries))
    return do_unique(environment, entries, case_sensitive, attribute)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


@jinja2.pass_environment
def _sum(
    environment: TemplateEnvironment, values: Any, attribute: str | None = None, start: Any = 0
) -> Any:
    """Jinja's ``sum``, one guarded addition at a time."""
    allowance = current_allowance.get()
    for value in values:
        for name in attribute.split(".") if attribute else ():
            value = environment.getitem(value, name)
        start = allowance.admit(start + value)
    return start


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the HTML escapes of jinja2's own filter."""
    allowance = current_allowance.get()
    for written in (indent, *(separators or ())):
        allowance.width(len(written) if isinstance(written, str) else written)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    pieces, length = [], 0
    for piece in encoder.iterencode(value):
        length += len(piece)
        allowance.fits(length)
        pieces.append(piece)
    return "".join(pieces)
