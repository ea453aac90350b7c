"""Exit statuses, and the one line on stderr that goes with a refusal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from caldrix.cli.main import execute
from caldrix.models.lane import find_lane
from caldrix.models.loading import load_model


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "frobnicate"),
        (["serve", "--frob"], "see `caldrix serve --help`"),
        (["serve", "--port", "high"], "--port"),
        (["serve", "--max-batch", "2.5"], "--max-batch: it must be a whole number, got 2.5"),
        (["serve", "--port", "99999"], "--port must be 0 to 65535, got 99999"),
        (["serve", "--served-name", ""], "--served-name must not be empty"),
        (["run", "-p", "\udcff"], "--prompt is not valid text"),
        (["serve", "--top-p", "2"], "--top-p must be 0 < p <= 1, got 2"),
        (["serve", "no-such-model", "--port", "0"], "no model 'no-such-model'"),
        (["serve", "--backend", "abacus"], "no lane 'abacus'"),
        (["serve", "--threads", "many"], "--threads must be auto or a whole number"),
        (["run", "--max-tokens", "0", "-p", "x"], "--max-tokens must be a whole number"),
        (["models", "show", "no-such-model"], "no model 'no-such-model'"),
        (["conformance", "--contract", "none"], "no spec of a contract named 'none'"),
    ],
)
def test_a_refusal_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("caldrix: ")
    assert said in line


def test_doctor_tells_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"caldrix", "lane cpu", "lane hip", "lane host", "memory", "cache"} <= set(report)
    assert report["lane cpu"]["cores"] >= 1
    assert execute(["doctor"]) == 0
    assert "lane cpu" in capsys.readouterr().out


def test_an_unknown_set_of_kernels_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALDRIX_CPU_KERNELS", "abacus")
    assert execute(["serve"]) == 2
    assert "CALDRIX_CPU_KERNELS=abacus" in capsys.readouterr().err


def run_endlessly(stdout: int) -> subprocess.Popen[bytes]:
    """`caldrix run` with an answer that goes on, once it has begun to load."""
    command = str(Path(sys.executable).with_name("caldrix"))
    return subprocess.Popen(
        [command, "run", "smollm2", "-p", "Write a long story."],
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def compiled_smollm2(smollm2_path: Path) -> None:
    """The embedded model with its kernels in the cache, so that nothing is said about them."""
    with load_model(smollm2_path, lane=find_lane("cpu"), context=2):
        pass


@pytest.mark.usefixtures("compiled_smollm2")
def test_an_interrupted_answer_ends_in_one_line() -> None:
    with run_endlessly(subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, b"caldrix: interrupted\n")


@pytest.mark.usefixtures("compiled_smollm2")
def test_a_reader_that_leaves_ends_the_answer_in_silence() -> None:
    read, write = os.pipe()
    with run_endlessly(write) as process:
        os.close(write)
        assert os.read(read, 1)
        os.close(read)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, b"")


def test_a_closed_stderr_takes_nothing_from_the_answer(smollm2_path: Path) -> None:
    command = str(Path(sys.executable).with_name("caldrix"))
    line = f"exec '{command}' run smollm2 --max-tokens 3 -p 'Say hi' 2>&-"
    answered = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, check=False, timeout=60)
    assert answered.returncode == 0
    assert len(answered.stdout) > 3
