"""From files to a model that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import find_lane
from caldrix.models.loading import load_model
from tests.support.tiny_model import write_tiny_model


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
