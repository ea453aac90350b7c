"""The cpu lane's choice of kernels."""

from __future__ import annotations

import pytest

from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix_cpu import lane as lane_module
from caldrix_cpu import variants
from caldrix_cpu.lane import KERNELS_VARIABLE, CpuLane
from caldrix_cpu.numpy_executor import NumpyExecutor
from caldrix_cpu.tape_executor import TapeExecutor
from tests.support.compiled import EXECUTABLE
from tests.support.random_models import random_model

OLD = ("avx2", "fma", "f16c")


@pytest.fixture
def old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lane_module, variants):
        monkeypatch.setattr(module, "cpu_features", lambda: OLD)


def test_the_best_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    facts = CpuLane().describe()
    assert facts["kernels"] == EXECUTABLE[0].name
    assert facts["kernels that run here"] == [*(each.name for each in EXECUTABLE), "numpy"]
    assert facts["operations by numpy"] == []


@pytest.mark.usefixtures("old_processor")
def test_an_older_processor_has_older_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    facts = CpuLane().describe()
    assert facts["kernels"] == "avx2"
    assert facts["kernels that run here"] == ["avx2", "generic", "numpy"]


@pytest.mark.parametrize("name", [*(variant.name for variant in EXECUTABLE), "numpy"])
def test_kernels_can_be_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, name)
    lane = CpuLane()
    assert lane.describe()["kernels"] == name
    model = random_model("llama", "F32")
    assert lane.verifies_drafts == (name != "numpy")
    with lane.compile(model.program, model.weights, LaneOptions(context=8)) as executor:
        assert isinstance(executor, NumpyExecutor if name == "numpy" else TapeExecutor)
        assert executor.reproducible == lane.verifies_drafts


def test_unknown_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "sse9")
    with pytest.raises(LaneUnavailable) as refused:
        CpuLane()
    assert str(refused.value) == (
        "CALDRIX_CPU_KERNELS=sse9: no such kernels; "
        "unset it, or set one of avx512-vnni, avx512, avx2, generic, numpy"
    )


@pytest.mark.usefixtures("old_processor")
def test_kernels_that_would_not_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "avx512")
    with pytest.raises(LaneUnavailable) as refused:
        CpuLane()
    assert str(refused.value) == (
        "CALDRIX_CPU_KERNELS=avx512: this processor lacks avx512bw, avx512dq, avx512f, avx512vl; "
        "unset it, or set one of avx2, generic, numpy"
    )
