"""The score-based merge machine, against the tokenizers library on the same vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers

from caldrix.text.errors import TokenizerRefusal
from caldrix.text.gguf_vocabulary import GgufVocabulary, TokenType
from caldrix.text.score_bpe import ScoreBpe

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIALS = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "<cut>": TokenType.USER_DEFINED}


def vocabulary(pieces: dict[str, float], *, space_prefix: bool) -> GgufVocabulary:
    tokens = [*SPECIALS, *BYTES, *pieces]
    return GgufVocabulary.from_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [
                *SPECIALS.values(),
                *[TokenType.BYTE] * 256,
                *[TokenType.NORMAL] * len(pieces),
            ],
            "tokenizer.ggml.scores": [0.0] * (len(tokens) - len(pieces)) + [*pieces.values()],
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": space_prefix,
        }
    )


def reference(vocabulary: GgufVocabulary) -> Tokenizer:
    """The library's BPE, its merges written in transformers' order for such a vocabulary."""
    assert vocabulary.scores is not None
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    splits = [
        (token[:cut], token[cut:])
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind == TokenType.NORMAL
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    scores = vocabulary.scores
    splits.sort(key=lambda pair: (-scores[ids["".join(pair)]], -len(pair[0]), -len(pair[1])))
    library = Tokenizer(
        models.BPE(ids, splits, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if vocabulary.add_space_prefix:
        steps.insert(0, normalizers.Prepend("▁"))
    library.normalizer = normalizers.Sequence(steps)
    library.add_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    return library


# Few letters and few scores: many pieces overlap, and many pairs tie.
piece_sets = st.dictionaries(
    st.text("ab▁", min_size=1, max_size=6),
    st.sampled_from([-1.0, -2.0, -3.0, -1e9]),
    max_size=25,
).map(lambda pieces: {**dict.fromkeys("ab▁", -9.0), **pieces})
typed = st.lists(
    st.one_of(st.text("ab ▁", max_size=12), st.sampled_from([*SPECIALS, "<s", "é", "\n", "<0x41>"]))
).map("".join)


@given(piece_sets, typed, st.booleans())
def test_ids_equal_the_library_s(pieces: dict[str, float], text: str, space_prefix: bool) -> None:
    entries = vocabulary(pieces, space_prefix=space_prefix)
    assert ScoreBpe(entries).encode(text) == reference(entries).encode(text).ids


def test_a_long_run_takes_no_quadratic_time() -> None:
    pieces = {"a" * 2**power: -float(power) for power in range(8)} | {"▁": -9.0}
    entries = vocabulary(pieces, space_prefix=False)
    assert ScoreBpe(entries).encode("a" * 2**16) == [entries.tokens.index("a" * 128)] * 2**9


def test_a_vocabulary_must_be_able_to_write_every_text() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.scores": [0.0],
    }
    with pytest.raises(TokenizerRefusal, match="256 byte tokens"):
        ScoreBpe(GgufVocabulary.from_metadata(metadata))


def test_unknown_characters_fuse_into_one_unknown_token() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a"],
        "tokenizer.ggml.scores": [0.0, 0.0],
        "tokenizer.ggml.token_type": [2, 1],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }
    bpe = ScoreBpe(GgufVocabulary.from_metadata(metadata))
    assert bpe.encode("éèaé") == [0, 1, 0]
