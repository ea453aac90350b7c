"""Prometheus text, read strictly: sans-IO, after the text-based exposition format, version 0.0.4.

A scraper drops everything from a page that it can't read in one place; so a check reads it all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

KINDS = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\[\\"n])*)"[ \t]*'
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?[iI]nf|[nN]a[nN]"
_COMMENT = re.compile(rf"#[ \t]*(HELP|TYPE)[ \t]+({_NAME})(?:[ \t]+(.*))?")
_BEFORE_LABELS = re.compile(rf"({_NAME})[ \t]*\{{[ \t]*")
_BARE = re.compile(rf"({_NAME})[ \t]+")
_ONE_LABEL = re.compile(_LABEL)
_VALUE = re.compile(rf"[ \t]*({_NUMBER})(?:[ \t]+-?[0-9]+)?")
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = Mapping[str, str]


class ExpositionError(AssertionError):
    """The text is not in the exposition format."""


@frozen
class Sample:
    """A line with a value."""

    name: str
    labels: Labels
    value: float

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


@frozen
class Comment:
    """A HELP or a TYPE; other comments are passed over."""

    keyword: str
    name: str
    text: str


Line = Sample | Comment


@frozen
class Metric:
    """The samples of one metric, whose names may have endings such as _bucket."""

    name: str
    kind: str
    """"untyped" where the text has no TYPE for it."""
    samples: Sequence[Sample]

    def of(self, ending: str) -> Sequence[Sample]:
        """The samples whose name has that ``ending``."""
        return [sample for sample in self.samples if sample.name == self.name + ending]


def read_lines(body: bytes) -> Sequence[Line]:
    """The lines that say something, in order. Raises ExpositionError for any that is ill-formed."""
    lines: list[Line] = []
    for number, text in enumerate(body.decode("utf-8", "replace").split("\n"), 1):
        stripped = text.strip(" \t")
        try:
            line = _comment(stripped) if stripped.startswith("#") else _sample(stripped)
        except ExpositionError as error:
            raise ExpositionError(f"line {number} {error}: {text[:120]!r}") from None
        if line is not None:
            lines.append(line)
    return lines


def _comment(text: str) -> Comment | None:
    words = text[1:].split(maxsplit=1)
    if not words or words[0] not in ("HELP", "TYPE"):
        return None
    found = _COMMENT.fullmatch(text)
    if found is None:
        raise ExpositionError(f"is no {words[0]} of a metric")
    keyword, name, said = found.groups("")
    if keyword == "TYPE" and said not in KINDS:
        raise ExpositionError(f"has the kind {said!r}")
    if keyword == "HELP" and re.search(r"\\(?![\\n])", said.replace(r"\\", "")):
        raise ExpositionError("has a \\ that begins no escape")
    return Comment(keyword, name, said)


def _sample(text: str) -> Sample | None:
    if not text:
        return None
    labels: dict[str, str] = {}
    begun = _BEFORE_LABELS.match(text)
    if begun is not None:
        position = _read_labels(text, begun.end(), labels)
    else:
        begun = _BARE.match(text)
        if begun is None:
            raise ExpositionError("is no sample")
        position = begun.end()
    value = _VALUE.fullmatch(text, position)
    if value is None:
        raise ExpositionError("has no value where one should be")
    return Sample(begun[1], labels, float(value[1]))


def _read_labels(text: str, position: int, labels: dict[str, str]) -> int:
    """Read labels up to the closing brace; gives the position behind it."""
    while not text.startswith("}", position):
        found = _ONE_LABEL.match(text, position)
        if found is None:
            raise ExpositionError("has ill-formed labels")
        name, value = found.groups()
        if name in labels:
            raise ExpositionError(f"has the label {name} twice")
        labels[name] = re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], value)
        position = found.end()
        if text.startswith(",", position):
            position += 1 + len(text[position + 1 :]) - len(text[position + 1 :].lstrip(" \t"))
        elif not text.startswith("}", position):
            raise ExpositionError("has ill-formed labels")
    return position + 1


def read_metrics(lines: Iterable[Line]) -> Mapping[str, Metric]:
    """The metrics by name, whatever the order of their lines."""
    lines = tuple(lines)
    kinds = {
        line.name: line.text
        for line in lines
        if isinstance(line, Comment) and line.keyword == "TYPE"
    }
    samples: dict[str, list[Sample]] = {name: [] for name in kinds}
    for line in lines:
        if isinstance(line, Sample):
            samples.setdefault(metric_of(line, kinds), []).append(line)
    return {name: Metric(name, kinds.get(name, "untyped"), of) for name, of in samples.items()}


def metric_of(line: Line, kinds: Mapping[str, str]) -> str:
    """The name of the metric that a line belongs to; ``kinds`` are those of the TYPE lines."""
    if isinstance(line, Sample):
        for kind, endings in _PARTS.items():
            for ending in endings:
                name = line.name.removesuffix(ending)
                if name != line.name and kinds.get(name) == kind:
                    return name
    return line.name


def counters(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """What each counter's samples say; the counts of a histogram only rise as well."""
    counted = {"counter": ("",), "histogram": ("_bucket", "_count")}
    return {
        str(sample): sample.value
        for metric in metrics.values()
        for ending in counted.get(metric.kind, ())
        for sample in metric.of(ending)
    }
