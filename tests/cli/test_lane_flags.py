"""What `serve` and `run` ask of a lane, by their flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from attrs import define, field

from caldrix.cli import opening, serve
from caldrix.cli.main import execute
from caldrix.cli.options import read_size
from caldrix.errors import Refusal
from caldrix.models.lane import Executor, LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix.weights.progress import SILENT
from caldrix.weights.tensor import Tensor
from tests.support.tiny_model import write_tiny_model


@define
class AskedLane:
    """Keeps what it is asked for, begins to compile, and then cannot."""

    name: str = "asked"
    picks: bool = False
    usual_rows: int = 1
    verifies_drafts: bool = True
    asked: list[LaneOptions] = field(factory=list)

    def batches(self, formats: Set[str]) -> bool:
        return True

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        self.asked.append(options)
        options.progress.begin("compiling kernels", 3, unit="pieces")
        raise LaneUnavailable("it only listens")

    def describe(self) -> Mapping[str, object]:
        return {}


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> AskedLane:
    """The lane that both commands find."""
    asked = AskedLane()
    monkeypatch.setattr(opening, "find_lane", lambda name: asked)
    return asked


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [["run", "-p", "x"], ["serve", "--port", "0"]])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], LaneOptions(128)),
        (["--dtype", "q8_0", "--threads", "3"], LaneOptions(128, threads=3, dtype="q8_0")),
        (["--kv-dtype", "f16", "--context", "64"], LaneOptions(64, kv_dtype="f16")),
        (["--weight-budget", "1.5K"], LaneOptions(128, weight_budget=1536)),
    ],
)
def test_flags_reach_the_lane_and_its_progress_the_terminal(
    command: Sequence[str],
    flags: Sequence[str],
    expected: LaneOptions,
    lane: AskedLane,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute([*command, str(model), *flags]) == 2
    asked = lane.asked[-1]
    assert asked.progress is not SILENT
    assert (asked.context, asked.rows, asked.threads) == (expected.context, 1, expected.threads)
    assert (asked.dtype, asked.kv_dtype) == (expected.dtype, expected.kv_dtype)
    assert asked.weight_budget == expected.weight_budget
    # `serve` asks for room to keep what questions share, and then without it.
    times = 2 if command[0] == "serve" else 1
    assert [each.snapshots for each in lane.asked] == [1, 0][-times:]
    assert capsys.readouterr().err == "compiling kernels\ncaldrix: it only listens\n"


@pytest.mark.parametrize(("flags", "rows"), [([], 1), (["--max-batch", "8"], 8)])
def test_a_decider_is_asked_one_thing_at_a_time_unless_told_otherwise(
    flags: Sequence[str],
    rows: int,
    lane: AskedLane,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lane.usual_rows = 8
    (model / "decider_config.json").write_text(
        '{"temperature": 1.03, "neutralize_none": false, "isolated_levels": true}'
    )
    assert execute(["serve", "--port", "0", str(model), *flags]) == 2
    assert {each.rows for each in lane.asked} == {rows}
    assert ("--max-batch 8 answers other requests" in capsys.readouterr().err) == (rows == 1)


def test_a_device_that_is_missing_is_told_before_a_model_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Deviceless(AskedLane):
        def device(self) -> object:
            raise LaneUnavailable("there is no device")

    monkeypatch.setattr(opening, "find_lane", lambda name: Deviceless())
    monkeypatch.setattr(serve, "resolve", lambda *arguments: pytest.fail("a model was looked for"))
    assert execute(["serve", "--port", "0", "llama-8b"]) == 2
    assert capsys.readouterr().err == "caldrix: there is no device\n"


@pytest.mark.parametrize(
    ("flags", "lane_picks", "picks"),
    [
        ([], True, False),
        (["--max-batch", "2"], True, True),
        (["--max-batch", "2"], False, False),
        (["--max-batch", "2", "--sampler", "device"], True, True),
        (["--max-batch", "2", "--sampler", "host"], True, False),
        (["--sampler", "host"], False, False),
    ],
)
def test_where_tokens_are_picked(
    flags: Sequence[str], lane_picks: bool, picks: bool, lane: AskedLane, model: Path
) -> None:
    lane.picks = lane_picks
    assert execute(["serve", "--port", "0", str(model), *flags]) == 2
    assert {each.picks for each in lane.asked} == {picks}


@pytest.mark.parametrize(
    ("command", "lane_picks", "said"),
    [
        (["serve"], False, "the asked lane picks tokens on the CPU; choose another --backend"),
        (["serve", "--max-batch", "1"], True, "choose a --max-batch of 2 or more, or leave out"),
        (["serve", "--max-batch", "8"], False, "the asked lane picks tokens on the CPU"),
        (["run"], False, "the asked lane picks tokens on the CPU"),
    ],
)
def test_a_device_that_picks_no_tokens_is_refused(
    command: Sequence[str],
    lane_picks: bool,
    said: str,
    lane: AskedLane,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lane.picks = lane_picks
    assert execute([*command, "--sampler", "device"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("caldrix: --sampler device: ")
    assert said in line
    assert not lane.asked


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sampler", "gpu"], "--sampler"),
        (["--dtype", "q5_0"], "--dtype"),
        (["--dtype", "Q8_0"], 'Did you mean "q8_0"?'),
        (["--kv-dtype", "bf16"], "--kv-dtype"),
        (
            ["--weight-budget", "2 apples"],
            "--weight-budget must be a size such as 500M, 2G or 1.5GiB, or bytes, got 2 apples",
        ),
    ],
)
def test_flags_that_make_no_sense(
    command: str, flags: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([command, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("123456789", 123_456_789),
        ("500M", 500 * 2**20),
        ("2g", 2 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("1.5GB", 1_500_000_000),
        ("0.1K", 102),
        ("3TiB", 3 * 2**40),
        ("7kb", 7000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read_size("--weight-budget", text) == size


@pytest.mark.parametrize(
    "text",
    ["", "0", "0G", "-1", "1.5", "G", "2P", "2 G", "2iB", "2Gi", "1e9", "١G", "2G\n", "9" * 40],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(Refusal, match=r"^--weight-budget must be a size such as 500M, 2G or"):
        read_size("--weight-budget", text)
