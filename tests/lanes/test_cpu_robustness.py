"""What must not happen around the compiled lane: other people's files run, orphans, lost causes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from caldrix.models.builder import ProgramBuilder
from caldrix.models.lane import LaneError, LaneOptions, LaneUnavailable, Slice
from caldrix.models.program import KvCache, Program
from caldrix.weights.progress import SILENT, Unit
from caldrix.weights.tensor import Tensor
from caldrix_cpu.arena import Arena
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.library import load_kernels
from tests.support.compiled import BEST, compiled, float_tensor

VOCAB, WIDTH = 64, 32


def attention_model(values: float = 1.0) -> tuple[Program, dict[str, Tensor]]:
    """Embeddings that attend to one another; token 50's are ``values`` times as large."""
    b = ProgramBuilder("test", vocab_size=VOCAB, max_context=256)
    x = b.embed("e", WIDTH)
    attended = b.attend(x, x, x, KvCache(2, 16), heads=2, scale=0.25)
    program = b.logits(b.select(b.add(x, attended)), "e")
    table = np.random.default_rng(3).standard_normal((VOCAB, WIDTH)).astype(np.float32)
    table[50] *= values
    return program, {"e": float_tensor(table)}


def test_the_compiler_runs_no_file_of_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user was run')")
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.chdir(tmp_path)
    assert load_kernels(BEST, ["lookup-F32"], SILENT)["lookup-F32"].address
    (kernel,) = (tmp_path / "cache").rglob("*.kernel")
    # As readable as any other file of the cache.
    umask = os.umask(0)
    os.umask(umask)
    assert kernel.stat().st_mode & 0o777 == 0o666 & ~umask


def compilers_of(process: int) -> list[str]:
    """The compilers that a process has started."""
    found = []
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        with suppress(FileNotFoundError):
            if b"caldrix_cpu.codegen.build" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def is_running(process: str) -> bool:
    """Whether a process is there and has not ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


def test_sigterm_while_compiling_leaves_no_compiler_behind(
    tmp_path: Path, smollm2_path: Path
) -> None:
    environment = {**os.environ, "CALDRIX_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "caldrix", "serve", str(smollm2_path), "--port", "0"]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (compilers := compilers_of(server.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert compilers
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 128 + signal.SIGTERM
    while any(map(is_running, compilers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, compilers))


def test_threads_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    program, weights = attention_model()
    started = threading.Thread.start
    given: list[threading.Thread] = []

    def start(self: threading.Thread) -> None:
        if given:
            raise RuntimeError("can't start new thread")
        given.append(self)
        started(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with (
        pytest.raises(LaneUnavailable, match="--threads"),
        compiled(program, weights, context=16, threads=3),
    ):
        pass
    given[0].join(10)
    assert not given[0].is_alive()
    options = LaneOptions(context=16, threads=256)
    with (
        pytest.raises(LaneUnavailable, match="at most 255"),
        tape_executor(program, weights, options, BEST),
    ):
        pass


def test_an_exception_between_the_workers_and_the_step_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, weights = attention_model()

    def interrupted(*_: int) -> int:
        time.sleep(0.05)
        raise KeyboardInterrupt

    with compiled(program, weights, context=16) as executor:
        executor.step([Slice(0, 0, np.array([1, 2]))])
        monkeypatch.setattr(executor, "_run_kernel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executor.step([Slice(0, 2, np.array([3]), 1)])


def test_a_value_past_float16_is_the_largest_and_earlier_tokens_do_not_see_it() -> None:
    program, weights = attention_model(values=1e5)
    tokens = np.array([1, 2, 3, 50])
    with compiled(program, weights, context=16, kv_dtype="f16") as executor:
        whole = executor.step([Slice(0, 0, tokens, 4)]).copy()
        assert np.isfinite(whole).all()
        executor.step([Slice(0, 0, tokens[:3], 1)])
        later = executor.step([Slice(0, 3, np.array([4]), 1)]).copy()
        assert np.array_equal(executor.step([Slice(0, 0, np.array([1, 2, 3, 4]), 1)]), later)
    with compiled(program, weights, context=16, kv_dtype="f16") as executor:
        alone = [executor.step([Slice(0, i, tokens[i : i + 1], 1)])[0].copy() for i in range(4)]
    assert np.array_equal(whole, np.stack(alone))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_never_packed_away(bad: float) -> None:
    table = np.random.default_rng(3).standard_normal((VOCAB, WIDTH)).astype(np.float32)
    table[7, 5] = bad
    b = ProgramBuilder("test", vocab_size=VOCAB, max_context=64)
    x = b.embed("e", WIDTH)
    program = b.logits(b.select(b.linear(x, "w", WIDTH)), "w2")
    plain = np.random.default_rng(4).standard_normal((VOCAB, WIDTH)).astype(np.float32)
    weights = {
        "e": float_tensor(table),
        "w": float_tensor(plain[:WIDTH], name="w"),
        "w2": float_tensor(plain, name="w2"),
    }
    options = LaneOptions(context=16, threads=1, dtype="q8_0")
    with tape_executor(program, weights, options, BEST) as executor:
        logits = executor.step([Slice(0, 0, np.array([6, 7]), 2)])
        assert np.isfinite(logits[0]).all()
        assert not np.isfinite(logits[1]).any()


@pytest.mark.parametrize(
    "slices",
    [
        [],
        [Slice(0, 0, np.array([1])), Slice(0, 1, np.array([1]))],
        [Slice(-1, 0, np.array([1]))],
        [Slice(2, 0, np.array([1]))],
        [Slice(0, -1, np.array([1]))],
        [Slice(0, 1, np.array([1]))],
        [Slice(0, 0, np.array([1]), wanted=-1)],
        [Slice(0, 0, np.array([1]), wanted=2)],
        [Slice(0, 0, np.array([VOCAB]))],
        [Slice(0, 0, np.array([-1, 1]))],
    ],
)
def test_slices_that_make_no_sense_are_refused(slices: list[Slice]) -> None:
    program, weights = attention_model()
    with compiled(program, weights, context=16, rows=2) as executor:
        with pytest.raises(LaneError):
            executor.step(slices)
        assert np.isfinite(executor.step([Slice(1, 0, np.array([1, 2]), 1)])).all()


class Notes:
    """A Progress that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_width_that_cannot_be_quantized_is_told() -> None:
    b = ProgramBuilder("test", vocab_size=VOCAB, max_context=64)
    program = b.logits(b.select(b.embed("e", 48)), "e")
    table = np.random.default_rng(3).standard_normal((VOCAB, 48)).astype(np.float32)
    progress = Notes()
    options = LaneOptions(context=16, dtype="q8_0", progress=progress)
    with tape_executor(program, {"e": float_tensor(table, name="e")}, options, BEST) as executor:
        executor.step([Slice(0, 0, np.array([1]), 1)])
    assert [note for note in progress.notes if "kept in bf16 instead of q8_0" in note]


def test_memory_that_is_not_to_be_had_is_refused() -> None:
    with pytest.raises(LaneUnavailable, match="GiB"):
        Arena(1 << 62)
