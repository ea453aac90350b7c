"""From files to a model that runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import ContextUnavailable, LaneOptions, LaneUnavailable, find_lane
from caldrix.models.loading import TextModel, load_model
from caldrix_cpu import compiled
from caldrix_cpu.lane import KERNELS_VARIABLE
from caldrix_cpu.memory import Needs, require_memory
from tests.soak.model import write_model
from tests.support.tiny_model import write_tiny_model
from tests.support.told import Told


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model of 96 tokens, with a tokenizer of 256."""
    write_tiny_model(tmp_path)
    return tmp_path


def test_a_tokenizer_may_have_more_tokens_than_the_embedding(checkpoint: Path) -> None:
    with load_model(checkpoint, lane=find_lane("cpu")) as model:
        assert model.tokenizer.vocab_size == 256
        assert model.executor.vocab_size == model.program.vocab_size == 96


def test_a_context_past_the_training_is_refused_with_what_is_possible(checkpoint: Path) -> None:
    expected = "a context of 129 tokens .* trained for 128; ask for at most that"
    with (
        pytest.raises(UnsupportedModel, match=expected),
        load_model(checkpoint, lane=find_lane("cpu"), context=129),
    ):
        pass


def test_a_model_whose_states_cannot_go_back_has_no_use_for_prefix_rows(tmp_path: Path) -> None:
    expected = "a qwen3_5 model keeps states that cannot go back .* leave out --prefix-rows"
    with (
        pytest.raises(UnsupportedModel, match=expected),
        load_model(write_model(tmp_path / "m", "qwen3_5"), lane=find_lane("cpu"), prefix_rows=1),
    ):
        pass


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_what_is_kept_takes_memory_beside_the_rows(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m", family)
    with load_model(path, lane=find_lane("cpu"), context=64, keeps=True) as model:
        assert model.snapshots == 1
        assert model.cache_bytes == 2 * model.executor.row_bytes
    with load_model(path, lane=find_lane("cpu"), context=64) as model:
        assert model.snapshots == 0
        assert model.cache_bytes == model.executor.row_bytes
    # What does not keep a token's logits the same keeps nothing.
    monkeypatch.setenv(KERNELS_VARIABLE, "numpy")
    with load_model(path, lane=find_lane("cpu"), context=64, keeps=True) as model:
        assert model.snapshots == 0


def test_without_the_memory_for_it_nothing_is_kept(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def require(needed: Needs, options: LaneOptions, available: int | None) -> None:
        asked.append(options.most_rows)
        if options.most_rows > 1:
            raise LaneUnavailable("there is room for one row alone")

    monkeypatch.setattr(compiled, "require_memory", require)
    with load_model(checkpoint, lane=find_lane("cpu"), context=64, keeps=True) as model:
        assert model.snapshots == 0
    assert asked == [2, 1]
    with (
        pytest.raises(LaneUnavailable, match="room for one row alone"),
        load_model(checkpoint, lane=find_lane("cpu"), context=64, rows=2, keeps=True),
    ):
        pass


@pytest.mark.parametrize("keeps", [False, True])
def test_a_context_that_nobody_asked_for_is_what_the_memory_has_room_for(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = write_model(tmp_path / "m"), Told()
    room = 0

    def require(needed: Needs, options: LaneOptions, available: int | None) -> None:
        require_memory(needed, options, needed.weights + needed.caches(room))

    monkeypatch.setattr(compiled, "require_memory", require)

    def load(context: int | None = None) -> AbstractContextManager[TextModel]:
        lane = find_lane("cpu")
        return load_model(path, lane=lane, context=context, keeps=keeps, progress=told)

    room = 4096
    with load() as model:
        assert (model.context, model.snapshots) == (4096, 0)
    assert [note for note in told.notes if "context" in note] == [
        "the context is 4096 tokens instead of 32768, as more does not fit into memory; "
        "--context chooses another"
    ]
    with pytest.raises(ContextUnavailable, match="--context 4096 fits"), load(4097):
        pass
    # So short a one is for a person to choose.
    room = 1024
    with pytest.raises(ContextUnavailable, match="--context 1024 fits"), load():
        pass
    with load(1024) as model:
        assert model.context == 1024
