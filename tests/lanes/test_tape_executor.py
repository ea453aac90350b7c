"""The compiled executor beyond its numbers: refusals, budgets, long steps, threads and memory."""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from caldrix.models.builder import ProgramBuilder
from caldrix.models.lane import LaneError, LaneOptions, LaneUnavailable, Slice
from caldrix_cpu import compiled as compiled_module
from caldrix_cpu import tape_executor as tape_executor_module
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.tape_executor import TapeExecutor
from tests.support.compiled import BEST, compiled, feed, float_tensor
from tests.support.random_models import Model, random_model, tokens

LONG = tokens(1100, seed=5)


def piece(start: int, stop: int, *, row: int = 0, wanted: int = 0) -> Slice:
    return Slice(row, start, np.array(LONG[start:stop], np.int64), wanted)


def test_a_slice_past_the_context_is_refused() -> None:
    model = random_model("llama", "F32")
    with compiled(model.program, model.weights, context=20) as executor:
        with pytest.raises(LaneError, match="past the context of 20 positions"):
            executor.step([piece(15, 21)])
        executor.step([piece(0, 20)])


def test_a_windowed_row_goes_back_only_as_far_as_its_layers_remember() -> None:
    model = random_model("gemma3-early", "F32")
    with compiled(model.program, model.weights, context=1100, rows=2) as executor:
        whole = feed(executor, LONG, row=1)
        executor.step([piece(0, 1000)])
        # A ring holds 768 positions, and the window is 9.
        with pytest.raises(LaneError, match=r"row 0 was computed up to position 1000.*from 240"):
            executor.step([piece(240, 241)])
        back = executor.step([piece(241, 250, wanted=9)])
        np.testing.assert_array_equal(back, whole[241:250])
        # What was overwritten then is no nearer now that the row is shorter.
        with pytest.raises(LaneError, match="cannot go on from 200"):
            executor.step([piece(200, 201)])
        executor.step([piece(0, 220)])
        again = executor.step([piece(200, 230, wanted=30)])
        np.testing.assert_array_equal(again, whole[200:230])


@pytest.mark.parametrize("wanted", [1, 3, 100, 590])
def test_a_step_longer_than_a_run_gives_the_same_bits(wanted: int) -> None:
    model = random_model("qwen2-sliding", "Q4_1")
    with compiled(model.program, model.weights, context=1100, rows=3) as executor:
        whole = feed(executor, LONG[:700], range(100, 700, 100), row=2)
        steps = [[piece(0, 590, wanted=wanted), piece(0, 110, row=1, wanted=2)]]
        steps += [[piece(110, 700, row=1, wanted=wanted), piece(590, 591, wanted=1)]]
        first, second = (executor.step(step).copy() for step in steps)
        np.testing.assert_array_equal(first[:wanted], whole[590 - wanted : 590])
        np.testing.assert_array_equal(first[wanted:], whole[108:110])
        np.testing.assert_array_equal(second[:wanted], whole[700 - wanted : 700])
        np.testing.assert_array_equal(second[wanted:], whole[590:591])
        assert len(executor.step([piece(591, 600)])) == 0


def resident(folder: Path) -> int:
    """Bytes of mapped files of a folder that are in this process' memory."""
    total, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            within = str(folder) in line
        elif within and words[0] == "Rss:":
            total += 1024 * int(words[1])
    return total


@pytest.mark.parametrize("spill_run", [1, 64 << 20])
def test_a_weight_budget_changes_no_bit_and_keeps_little_in_memory(
    spill_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("llama", "Q8_0")
    expected = in_slices(model, None)
    monkeypatch.setattr(compiled_module, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(tape_executor_module, "_SPILL_RUN", spill_run)
    for budget in (0, 200_000):
        np.testing.assert_array_equal(in_slices(model, budget, tmp_path), expected)
    assert not any(tmp_path.iterdir())


def in_slices(model: Model, budget: int | None, spilled_to: Path | None = None) -> np.ndarray:
    options = LaneOptions(context=64, weight_budget=budget)
    with tape_executor(model.program, model.weights, options, BEST) as executor:
        logits = feed(executor, LONG[:40], (1, 20, 21))
        if spilled_to is not None:
            assert str(spilled_to) in Path("/proc/self/maps").read_text()
            assert resident(spilled_to) == 0
    return logits


def test_a_budget_without_a_place_to_spill_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiled_module, "cache_root", lambda: tmp_path / "file" / "cache")
    model = random_model("llama", "Q8_0")
    options = LaneOptions(context=64, weight_budget=1)
    with (
        pytest.raises(LaneUnavailable, match=r"--weight-budget needs room for weights in .*file"),
        tape_executor(model.program, model.weights, options, BEST),
    ):
        pass


def test_leaving_ends_threads_and_gives_memory_back() -> None:
    model = random_model("llama", "F32")
    # The C library keeps the stacks and pools of threads that ended, for the next ones.
    with compiled(model.program, model.weights, context=8, threads=3) as executor:
        executor.step([piece(0, 8)])
    before, taken = set(threading.enumerate()), mapped()
    # Caches of 256 MiB, of which next to nothing is ever written.
    with compiled(model.program, model.weights, context=2048, rows=64, threads=3) as executor:
        started = set(threading.enumerate()) - before
        assert sorted(thread.name for thread in started) == ["caldrix-cpu-1", "caldrix-cpu-2"]
        executor.step([piece(0, 9)])
        assert mapped() > taken + 200 * 2**20
    assert set(threading.enumerate()) == before
    with pytest.raises(LaneError, match="its memory is gone"):
        executor.step([piece(9, 10)])
    assert mapped() < taken + 50 * 2**20


def mapped() -> int:
    """Bytes of address space."""
    return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text().split()[0])


def test_executors_side_by_side_and_threads_that_slept() -> None:
    """Between steps the workers park; each executor has its own rows and threads."""
    models = [random_model("llama", "Q4_K"), random_model("gemma3", "BF12")]
    alone = []
    for model in models:
        with compiled(model.program, model.weights, context=64, threads=1) as executor:
            alone.append(feed(executor, LONG[:30]))

    def step(executor: TapeExecutor, start: int, stop: int) -> np.ndarray:
        return executor.step([piece(start, stop, wanted=stop - start)]).copy()

    with (
        compiled(models[0].program, models[0].weights, context=64) as first,
        compiled(models[1].program, models[1].weights, context=64) as second,
    ):
        for start, stop in ((0, 12), (12, 13), (13, 14), (14, 30)):
            for executor, expected in zip((first, second), alone, strict=True):
                np.testing.assert_array_equal(step(executor, start, stop), expected[start:stop])
            time.sleep(0.02)
        for kept, computing in ((first, second), (second, first)):
            logits = kept.step([piece(0, 5, wanted=5)])
            copy = logits.copy()
            computing.step([piece(5, 10, wanted=5)])
            np.testing.assert_array_equal(logits, copy)


def test_weights_that_are_used_twice() -> None:
    """Layers that share weights and biases have each their own projections of them."""
    b = ProgramBuilder("test", vocab_size=16, max_context=16)
    x = b.embed("embedding", 16)
    for _ in range(3):
        x = b.add(x, b.linear(b.rms_norm(x, "norm", eps=1e-5), "w", 16, bias="bias"))
    program = b.logits(b.select(x), "embedding")
    rng = np.random.default_rng(0)
    shapes = {"embedding": (16, 16), "norm": (16,), "w": (16, 16), "bias": (16,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights = {name: float_tensor(array) for name, array in arrays.items()}
    x64 = arrays["embedding"].astype(np.float64)
    for _ in range(3):
        normed = x64 / np.sqrt((x64**2).mean(axis=1, keepdims=True) + 1e-5) * arrays["norm"]
        x64 = x64 + normed @ arrays["w"].T + arrays["bias"]
    with compiled(program, weights, context=16) as executor:
        logits = feed(executor, range(16))
    expected = x64 @ arrays["embedding"].T
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K", "BF12"])
@pytest.mark.parametrize("ids", [(0,), (17, 40, 33), (95, 16), (95,)], ids=str)
def test_some_logits_alone_have_the_bits_of_all(kind: str, ids: tuple[int, ...]) -> None:
    """Also beside a row that wants others, and after that all of them again."""
    model = random_model("llama", kind)
    wanted = np.array(ids, np.int64)

    def first(row: int, only: np.ndarray | None) -> Slice:
        return Slice(row, 0, np.array(LONG[:20], np.int64), wanted=2, only=only)

    with compiled(model.program, model.weights, context=64, rows=2) as executor:
        whole = executor.step([first(0, None)]).copy()
        assert whole.shape == (2, 96)
        executor.step([first(0, None)]).fill(np.nan)
        some = executor.step([first(0, wanted)])
        np.testing.assert_array_equal(some[:, wanted], whole[:, wanted])
        together = executor.step([first(0, wanted), first(1, wanted[:1])])
        np.testing.assert_array_equal(together[:2, wanted], whole[:, wanted])
        np.testing.assert_array_equal(together[2:, ids[0]], whole[:, ids[0]])
        # Who wants all gets them in such company.
        mixed = executor.step([first(0, wanted), first(1, None)])
        np.testing.assert_array_equal(mixed[2:], whole)
        np.testing.assert_array_equal(executor.step([first(0, None)]), whole)


def test_other_logits_are_not_computed() -> None:
    """Also those of a step that is several runs."""
    model = random_model("llama", "Q8_0")
    only = np.array([40, 33], np.int64)
    with compiled(model.program, model.weights, context=1024) as executor:
        for length in (20, 700):
            part = Slice(0, 0, np.array(LONG[:length], np.int64), wanted=1)
            executor.step([part]).fill(np.nan)
            (some,) = executor.step([evolve(part, only=only)])
            # The tile of 16 that both are in, and no other.
            assert np.flatnonzero(~np.isnan(some)).tolist() == list(range(32, 48))


@pytest.mark.parametrize("ids", [[96], [-1], [3, 200]])
def test_logits_of_tokens_that_are_not_there_are_refused(ids: list[int]) -> None:
    model = random_model("llama", "F32")
    with compiled(model.program, model.weights, context=64) as executor:
        part = Slice(0, 0, np.array(LONG[:3], np.int64), 1, only=np.array(ids, np.int64))
        with pytest.raises(LaneError, match="tokens are 0 to 95, not"):
            executor.step([part])
    with pytest.raises(ValueError, match="Length"):
        evolve(part, only=np.zeros(0, np.int64))
