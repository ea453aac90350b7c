"""From files to a model that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import find_lane
from caldrix.models.loading import load_model
from tests.references import tiny


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model of 96 tokens, with a tokenizer of 256: a token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    tiny.write_checkpoint("qwen3", tmp_path)
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
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
