"""How many requests at a time: as asked for, as is usual on the lane, or as the weights allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from caldrix.cli.main import execute
from caldrix.models.batching import Batching, BatchRefused, matrix_formats
from caldrix.models.lane import Lane
from caldrix_cpu.lane import CpuLane
from caldrix_opencl.lane import HipLane, HostLane
from tests.references import tiny
from tests.support.as_gguf import write_gguf
from tests.support.told import Told


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    return write_gguf("llama", tmp_path / "quantized.gguf", stored_as="Q8_0")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return tiny.write_checkpoint("llama", tmp_path)


REFUSED = (
    "--max-batch 8: the hip lane computes one request at a time with weights in Q8_0; use "
    "--max-batch 1, or another --backend (cpu and host compute them together), or --dtype bf16"
)


@pytest.mark.parametrize(
    ("lane", "asked", "dtype", "known"),
    [
        (CpuLane(), None, "auto", 1),
        (CpuLane(), 4, "q4_1", 4),
        (HostLane(), None, "auto", 8),
        (HostLane(), None, "q8_0", 8),
        (HostLane(), 3, "auto", 3),
        (HipLane(), None, "bf16", 8),
        (HipLane(), None, "q8_0", 1),
        (HipLane(), 1, "auto", 1),
        # The files decide.
        (HipLane(), None, "auto", None),
        (HipLane(), 8, "auto", None),
    ],
)
def test_what_is_known_before_there_are_files(
    lane: Lane, asked: int | None, dtype: str, known: int | None
) -> None:
    assert Batching(lane, asked, dtype).known() == known


def test_a_quantized_model_is_computed_alone_on_hip(quantized: Path, whole: Path) -> None:
    assert matrix_formats(quantized) == {"F32", "Q8_0"}
    assert matrix_formats(whole) == {"F32"}
    for path, asked, dtype, rows, noted in (
        (quantized, None, "auto", 1, "weights in F32, Q8_0; --dtype bf16 has it compute 8"),
        (quantized, None, "f32", 8, ""),
        (quantized, 1, "auto", 1, ""),
        (whole, None, "auto", 8, ""),
        (whole, 4, "auto", 4, ""),
        (whole, None, "q8_0", 1, "one request at a time: the hip lane computes no more together"),
    ):
        told = Told()
        assert Batching(HipLane(), asked, dtype).settled(path, told) == rows
        assert len(told.notes) == bool(noted)
        assert noted in "".join(told.notes)
        assert not told.begun
    with pytest.raises(
        BatchRefused, match=r"--max-batch 8: .* one request at a time .* F32, Q8_0;"
    ):
        Batching(HipLane(), 8, "auto").settled(quantized, Told())
    assert Batching(HostLane(), None, "auto").settled(quantized, Told()) == 8


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--backend hip --dtype q8_0 --max-batch 8", REFUSED),
        (
            "--backend hip --dtype bf16 --speculate ngram",
            "--speculate ngram: guesses are for one request at a time, and --max-batch is 8; "
            "restart with --max-batch 1",
        ),
        (
            "--backend host --speculate ngram",
            "--speculate ngram: the host lane cannot verify a draft with the kernels in use; "
            "choose another --backend, or leave out --speculate",
        ),
        ("--max-batch 0", "--max-batch must be a whole number of at least 1, got 0"),
    ],
)
def test_what_can_be_refused_before_a_download_is(
    command: str, flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([command, "no-such-model", *flags.split()]) == 2
    assert capsys.readouterr().err == f"caldrix: {said}\n"


def test_what_the_files_decide_is_refused_before_their_weights(
    quantized: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(HipLane, "device", lambda self: None)
    assert execute(["run", str(quantized), "--backend", "hip", "--max-batch", "8"]) == 2
    assert "--max-batch 8: the hip lane computes one" in capsys.readouterr().err
    assert execute(["run", str(whole), "--backend", "hip", "--speculate", "ngram"]) == 2
    assert "and --max-batch is 8; restart with --max-batch 1" in capsys.readouterr().err
