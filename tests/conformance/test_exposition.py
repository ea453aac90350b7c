"""Prometheus text: what the reader takes, and what it refuses."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix_conformance.metrics import (
    Comment,
    ExpositionError,
    Sample,
    read_lines,
    read_metrics,
)

PAGE = rb"""# A comment of no meaning.
# HELP requests_total Requests\nwith a \\ in them.
# TYPE requests_total counter
requests_total{path="/a",said="\"x\"\n\\"} 3 1700000000000
requests_total {path="/b", } 4e0

  # TYPE size histogram
size_bucket{le="1"} 1
size_bucket{le="+Inf"} 2
size_sum -0.5
size_count 2
bare NaN
"""


def test_a_page() -> None:
    lines = read_lines(PAGE)
    assert lines[:3] == [
        Comment("HELP", "requests_total", r"Requests\nwith a \\ in them."),
        Comment("TYPE", "requests_total", "counter"),
        Sample("requests_total", {"path": "/a", "said": '"x"\n\\'}, 3.0),
    ]
    metrics = read_metrics(lines)
    assert {name: metric.kind for name, metric in metrics.items()} == {
        "requests_total": "counter",
        "size": "histogram",
        "bare": "untyped",
    }
    assert [sample.value for sample in metrics["size"].of("_bucket")] == [1.0, 2.0]
    assert [sample.value for sample in metrics["size"].of("_sum")] == [-0.5]
    assert math.isnan(metrics["bare"].samples[0].value)


def test_endings_mean_nothing_without_a_type() -> None:
    assert list(read_metrics(read_lines(b"size_count 1\n"))) == ["size_count"]


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "1.", ".5", "1e-9", "-3"])
def test_values(value: str) -> None:
    (sample,) = read_lines(f"a {value}\n".encode())
    assert isinstance(sample, Sample)
    assert sample.value == float(value)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a{} ",
        "1a 2",
        "a-b 2",
        "a 0,0",
        "a 1_000",
        "a 0x10",
        "a 1 x",
        "a 1 2 3",
        "a 1\r",
        "a{b=1} 2",
        'a{b="1} 2',
        'a{b="1" c="2"} 2',
        r'a{b="\t"} 2',
        'a{b="1",b="2"} 2',
        "a{,} 2",
        'a{"b"="1"} 2',
        "# TYPE a",
        "# TYPE a number",
        "# TYPE 1 counter",
        "# HELP",
        r"# HELP a \t",
        '{"a": 1}',
    ],
)
def test_refused(line: str) -> None:
    with pytest.raises(ExpositionError, match=r"^line 2 "):
        read_lines(f"b 1\n{line}\n".encode())


@given(st.binary())
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(ExpositionError):
        read_metrics(read_lines(body))


@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
def test_any_label_comes_back(value: str) -> None:
    spelled = value.replace("\\", r"\\").replace('"', r"\"")
    (sample,) = read_lines(f'a{{b="{spelled}"}} 1\n'.encode())
    assert isinstance(sample, Sample)
    assert sample.labels == {"b": value}
