"""`caldrix bench`: what it prints, what it refuses, and what its numbers are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen

from caldrix.bench.bandwidth import Bandwidth, MemoryReader
from caldrix.bench.cases import Case, Decode, Prefill, Timing
from caldrix.bench.report import enqueue, results
from caldrix.bench.rounds import Round, measure
from caldrix.bench.subject import LaneSubject, Opened, open_subject
from caldrix.cli import bench
from caldrix.cli.main import execute
from caldrix.models.lane import Executor, LaneOptions, Slice, find_lane
from caldrix.models.program import Program
from caldrix.weights.tensor import Float32, Tensor
from tests.references import tiny
from tests.support.never_reused import NeverReused
from tests.support.opencl import require_device


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALDRIX_CPU_KERNELS", "numpy")
    return tiny.write_checkpoint("llama", tmp_path / "tiny")


def test_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--prompt", "40", "--depth", "10", "--depth", "100", "--decode", "4"]
    assert execute(["bench", str(checkpoint), *flags, "--rounds", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert (report["model"], report["path"]) == ("tiny", str(checkpoint))
    assert (report["lane"], report["dtype"]) == ("cpu", "auto")
    measured = [
        (each["name"], each["unit"], each["tokens"], each["depth"], each["sequences"])
        for each in report["results"]
    ]
    assert measured == [
        ("pp", "tokens/s", 40, 0, 1),
        ("ttft", "s", 40, 0, 1),
        ("tg", "tokens/s", 4, 10, 1),
        ("tg", "tokens/s", 4, 100, 1),
    ]
    spreads = [each["value"] for each in report["results"]]
    for spread in (*spreads, report["bandwidth"], report["bandwidth_median"]):
        assert len(spread["rounds"]) == 2
        assert 0 < spread["least"] <= spread["median"] <= spread["most"]
    (note,) = report["notes"]
    assert note.startswith("tg8 is left out: ")


def test_table(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--prompt", "5", "--decode", "2", "--batch", "1", "--rounds", "1", "--threads", "1"]
    assert execute(["bench", str(checkpoint), *flags]) == 0
    first, _, *rows, memory, weights = capsys.readouterr().out.splitlines()
    assert first == "tiny, lane cpu, 1 thread, dtype auto; 1 round"
    labels = ("pp 5 ", "first token after 5 ", "tg at 32 ")
    assert [row.startswith(label) for row, label in zip(rows, labels, strict=True)] == [True] * 3
    assert memory.startswith("memory is read at ")
    assert weights == "bytes of weights read for a token: not known, the lane doesn't say"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rounds", "0"], "--rounds must be a whole number of at least 1, got 0"),
        (["--depth", "0"], "--depth must be a whole number of at least 1, got 0"),
        (["--depth", "5", "--depth", "5"], "--depth 5 is given twice"),
        (["--dtype", "q3"], 'Invalid value "q3" for --dtype'),
        (["--threads", "0"], "--threads must be auto or a whole number"),
        ([], "--prompt 512 is more than the 128 tokens that tiny was trained for"),
        (
            ["--prompt", "9", "--depth", "100"],
            "--depth 100 with --decode 64 is more than the 128 tokens",
        ),
    ],
)
def test_refusals(
    checkpoint: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["bench", str(checkpoint), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_speeds_and_the_weights_read() -> None:
    cases: list[Case] = [Prefill(100), Decode(7, 10), Decode(7, 10, 8)]
    rounds = [
        Round(Bandwidth(20e9, 19e9), (Timing(0.5, 0.6), Timing(1.0), Timing(2.0))),
        Round(Bandwidth(40e9, 39e9), (Timing(0.25, 0.3), Timing(0.5), Timing(1.0))),
    ]
    prefill, first, one, eight = results(cases, rounds, 1_000_000_000)
    assert prefill.value.rounds == (200, 400)
    assert (prefill.read, prefill.read_share) == (None, None)
    assert (first.name, first.unit, first.value.rounds) == ("ttft", "s", (0.6, 0.3))
    assert one.value.rounds == (10, 20)
    assert (one.value.least, one.value.median, one.value.most) == (10, 15, 20)
    assert one.read is not None
    assert one.read_share is not None
    assert (one.read.rounds, one.read_share.rounds) == ((10, 20), (0.5, 0.5))
    # Eight sequences share a step, and its reading.
    assert (eight.name, eight.value.rounds) == ("tg8", (40, 80))
    assert eight.read is not None
    assert eight.read.rounds == (5, 10)
    assert results(cases, rounds, None)[2].read is None
    # Of another memory, what part of this machine's that would be says nothing.
    *_, far, _ = results(cases, rounds, 1_000_000_000, elsewhere=True)
    assert (far.read, far.read_share) == (one.read, None)


class Recorder(NeverReused):
    """An executor whose logits are a token's id, that remembers what it was given."""

    vocab_size = 1
    bytes_read_per_token = 12
    threads = 3

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int, int, int]]] = []

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.steps.append(
            [(each.row, each.start, len(each.tokens), each.wanted) for each in slices]
        )
        wanted = [each.tokens[len(each.tokens) - each.wanted :] for each in slices]
        return np.concatenate(wanted)[:, None].astype(np.float32)


class Launching(Recorder):
    """One that gives a device of its own the work of a token in launches."""

    launches_per_token = 7
    device_memory = "a card"

    def __init__(self) -> None:
        super().__init__()
        self.seconds = iter((9.0, 0.002, 0.004, 0.003))

    def enqueue_seconds(self) -> float:
        return next(self.seconds)


def test_launches_are_enqueued_once_a_round() -> None:
    subject = LaneSubject("launching", Launching())
    assert subject.device_memory == "a card"
    measured = measure(subject, [], MemoryReader(1, size=1000), 3, launching=subject.launching)
    spread = enqueue(measured)
    assert spread is not None
    assert (spread.rounds, spread.median) == ((2, 4, 3), 3)
    plain = LaneSubject("recorder", Recorder())
    assert (plain.launching, plain.device_memory) == (None, None)
    assert enqueue(measure(plain, [], MemoryReader(1, size=1000), 1)) is None


@frozen
class LaneOf:
    """A lane with one executor for everything."""

    executor: Executor
    name: str = "launching"

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        return nullcontext(self.executor)


def test_launches_and_another_memory_are_told(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lane = LaneOf(Launching())
    monkeypatch.setattr(bench, "find_lane", lambda name: lane)
    flags = ["--prompt", "5", "--decode", "2", "--batch", "1", "--rounds", "3"]
    assert execute(["bench", str(checkpoint), *flags]) == 0
    *_, told, _, launches = capsys.readouterr().out.splitlines()
    assert told == (
        "that is the processor's memory; the weights lie in that of a card, whose speed is not "
        "measured here"
    )
    assert launches == "launches for a token: 7, enqueued in 3 ms (2 to 4)"


def test_the_launches_of_an_opencl_device(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_device()
    flags = ["--prompt", "5", "--decode", "2", "--batch", "2", "--rounds", "2", "--json"]
    assert execute(["bench", str(checkpoint), "--backend", "host", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["launches_per_token"] > 3
    assert 0 < report["enqueue"]["least"] <= report["enqueue"]["most"]
    assert report["bytes_read_per_token"] > 0
    # A processor's device has no memory of its own.
    assert report["device_memory"] is None
    assert report["results"][-1]["read_share"] is not None


def test_a_started_model_goes_on_where_its_prompt_ended(checkpoint: Path) -> None:
    options = LaneOptions(context=64, rows=1)
    tokens = np.array(tiny.PROMPT)[None]
    with open_subject(checkpoint, find_lane("cpu"), options) as opened:
        expected = opened.subject.start(tokens, 40).copy()
        opened.subject.start(tokens[:, :30])
        decoded = [opened.subject.decode(tokens[:, place])[0].copy() for place in range(30, 40)]
    np.testing.assert_allclose(decoded, expected[30:], rtol=1e-4, atol=1e-5)


def test_prompts_in_slices_and_rows_together() -> None:
    executor = Recorder()
    subject = LaneSubject("recorder", executor)
    assert (subject.bytes_read_per_token, subject.threads) == (12, 3)
    prompts = np.arange(2 * 200).reshape(2, 200)
    logits = subject.start(prompts, wanted=100)
    np.testing.assert_array_equal(logits[:, 0], prompts[:, 100:].ravel())
    subject.decode(np.array([5, 6]))
    subject.decode(np.array([7, 8]))
    assert executor.steps == [
        [(0, 0, 128, 28)],
        [(0, 128, 72, 72)],
        [(1, 0, 128, 28)],
        [(1, 128, 72, 72)],
        [(0, 200, 1, 1), (1, 200, 1, 1)],
        [(0, 201, 1, 1), (1, 201, 1, 1)],
    ]


def test_a_lane_with_fewer_rows_says_why(checkpoint: Path) -> None:
    with open_subject(checkpoint, find_lane("cpu"), LaneOptions(context=64, rows=8)) as opened:
        assert isinstance(opened, Opened)
        assert opened.rows == 1
        assert opened.refusal is not None
        assert "one request at a time, not 8" in opened.refusal
        assert opened.subject.bytes_read_per_token is None


def test_memory_is_read_by_all_threads() -> None:
    bandwidth = MemoryReader(3, size=1000).measure()
    assert 0 < bandwidth.median <= bandwidth.best
