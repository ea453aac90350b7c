"""Checks before the operations of a chat template whose results outgrow their inputs.

Three tables say which: filters, string methods, and operators. A filter that is not in the table
and not removed makes a result about as large as its input, which is measured afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from caldrix.text.allowance import Allowance
from caldrix.text.errors import TemplateError

REMOVED_FILTERS = frozenset({"pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"})
"""Jinja's filters for web pages, and a random one: unbounded in time or of no use in a prompt."""

_LONGEST_FORMAT = 65_536
_FORMAT_STEP = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")
_NUMBER = re.compile(r"\d+")


def _bounded(parameter: str) -> Callable[..., Any]:
    """A guard for a width: the first argument, or ``parameter`` by name."""

    def guard(allowance: Allowance, value: Any, *args: Any, **kwargs: Any) -> Any:
        allowance.width(args[0] if args else kwargs.get(parameter))
        return value

    return guard


def _each_in_each(parameter: str) -> Callable[..., Any]:
    """A guard for a search that looks through all of the first argument at each character."""

    def guard(allowance: Allowance, value: Any, *args: Any, **kwargs: Any) -> Any:
        sought = args[0] if args else kwargs.get(parameter)
        if isinstance(sought, str | bytes):
            text = value if isinstance(value, str | bytes) else str(value)
            allowance.spend(len(text) * len(sought))
        return value

    return guard


def _indent(allowance: Allowance, value: Any, width: Any = 4, *args: Any, **_: Any) -> Any:
    allowance.width(width)
    if isinstance(value, str):
        added = len(width) if isinstance(width, str) else max(width, 0)
        allowance.fits(len(value) + (len(value.splitlines()) + 1) * (added + 1))
    return value


def _replace(allowance: Allowance, value: Any, old: Any, new: Any, *args: Any, **_: Any) -> Any:
    # Filters take anything and write it out first; methods take text.
    text, old, new = str(value), str(old), str(new)
    allowance.fits(len(text) + (text.count(old) + 1) * len(new))
    return value


def _join(allowance: Allowance, value: Iterable[Any], d: Any = "", *args: Any, **_: Any) -> Any:
    items = list(value)
    allowance.fits(allowance.weigh(items) + len(items) * len(str(d)))
    return items


def _compared(allowance: Allowance, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Sorting compares every entry with others: each may cost as much as the longest."""
    if not isinstance(value, Mapping):
        value = list(value)
    entries = value.items() if isinstance(value, Mapping) else value
    allowance.spend(len(value) * max(map(allowance.weigh, entries), default=0))
    return value


def _percent(allowance: Allowance, template: Any, *args: Any, **kwargs: Any) -> Any:
    """``%`` formatting: its widths, and its conversions times the largest value."""
    if not isinstance(template, str):
        return template
    if len(template) > _LONGEST_FORMAT:
        raise TemplateError("the chat template formats with a text that is too long")
    steps = _FORMAT_STEP.findall(template)
    for number in (number for step in steps for number in step if number):
        if number == "*":
            raise TemplateError("the chat template formats with a computed width")
        allowance.width(int(number))
    weight = allowance.weigh(args) + allowance.weigh(kwargs)
    allowance.fits(len(template) + len(steps) * weight)
    return template


_FILTER_GUARDS: Mapping[str, Callable[..., Any]] = {
    "batch": _bounded("linecount"),
    "center": _bounded("width"),
    "dictsort": _compared,
    "format": _percent,
    "groupby": _compared,
    "indent": _indent,
    "join": _join,
    "max": _compared,
    "min": _compared,
    "replace": _replace,
    "round": _bounded("precision"),
    "slice": _bounded("slices"),
    "sort": _compared,
    "trim": _each_in_each("chars"),
    "unique": _compared,
}
"""By filter: checks its arguments and returns its first, made a list where it was an iterator."""


def guard_filter(name: str, allowance: Allowance, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Check a filter's arguments before it runs; ``args`` begins with the filtered value."""
    if name in _FILTER_GUARDS:
        args[0] = _FILTER_GUARDS[name](allowance, *args, **kwargs)


def _expand_tabs(allowance: Allowance, text: Any, tabsize: Any = 8, *args: Any, **_: Any) -> None:
    allowance.width(tabsize)
    allowance.fits(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * tabsize)


def _refused(allowance: Allowance, *args: Any, **kwargs: Any) -> None:
    raise TemplateError("the chat template calls a method that is not allowed in templates")


def _codec(
    allowance: Allowance, text: Any, encoding: Any = "utf-8", errors: Any = "strict"
) -> None:
    """UTF-8 alone: other codecs take quadratic time, or write many characters for one."""
    if (encoding, errors) != ("utf-8", "strict"):
        raise TemplateError("the chat template encodes or decodes with a codec other than utf-8")


def _replace_method(
    allowance: Allowance, text: Any, old: Any, new: Any, *args: Any, **_: Any
) -> None:
    allowance.fits(len(text) + (text.count(old) + 1) * len(new))


_METHOD_GUARDS: Mapping[str, Callable[..., Any]] = {
    "center": _bounded("width"),
    "decode": _codec,
    "encode": _codec,
    "expandtabs": _expand_tabs,
    "fromkeys": _refused,
    "ljust": _bounded("width"),
    "lstrip": _each_in_each("chars"),
    "maketrans": _refused,
    "replace": _replace_method,
    "rfind": _each_in_each("sub"),
    "rindex": _each_in_each("sub"),
    "rjust": _bounded("width"),
    "rpartition": _each_in_each("sep"),
    "rsplit": _each_in_each("sep"),
    "rstrip": _each_in_each("chars"),
    "strip": _each_in_each("chars"),
    "to_bytes": _refused,
    "translate": _refused,
    "zfill": _bounded("width"),
}


def guard_call(
    allowance: Allowance, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Check a call before it runs; the arguments to run it with."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str | bytes | int | type):
        return args
    if name == "join" and isinstance(owner, str | bytes) and args:
        items = list(args[0])
        allowance.fits(allowance.weigh(items) + len(items) * len(owner))
        return (items, *args[1:])
    if name in _METHOD_GUARDS:
        _METHOD_GUARDS[name](allowance, owner, *args, **kwargs)
    return args


def guard_operator(allowance: Allowance, operator: str, left: Any, right: Any) -> None:
    """Check an operation before it runs."""
    if operator == "%" and isinstance(left, str):
        _percent(allowance, left, right)
    elif operator == "-" and (isinstance(left, Set) or isinstance(right, Set)):
        # The one way to a set, and so to hash tables that are not checked.
        raise TemplateError("the chat template subtracts the keys or items of a mapping")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(many, str | bytes | list | tuple):
                allowance.fits(allowance.weigh(many) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        allowance.bits(left.bit_length() * right)


def guard_format_spec(allowance: Allowance, spec: str) -> None:
    """Check the widths of one ``str.format`` field."""
    for number in _NUMBER.findall(spec):
        allowance.width(int(number))
