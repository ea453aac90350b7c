"""Byte-level BPE from a GGUF vocabulary: the pipeline of GPT-2, Llama 3, Qwen and their kin."""

from __future__ import annotations

from collections.abc import Mapping

import tokenizers
from tokenizers import AddedToken, models, normalizers

from caldrix.errors import quoted
from caldrix.text.errors import TokenizerRefusal
from caldrix.text.gguf_vocabulary import SPECIAL_TYPES, GgufVocabulary, TokenType
from caldrix.text.pretokenizers import PreTokenizer


def byte_level_bpe(vocabulary: GgufVocabulary, rule: PreTokenizer) -> tokenizers.Tokenizer:
    """The library's byte-level BPE over a GGUF vocabulary; raises TokenizerRefusal.

    It finds special and user-defined tokens written out in a text, and adds nothing around it.
    """
    if vocabulary.merges is None:
        raise TokenizerRefusal(
            "the vocabulary has no merges (tokenizer.ggml.merges), which a tokenizer.ggml.model of"
            " 'gpt2' needs; convert the model again"
        )
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = [_merge_pair(merge, vocab) for merge in vocabulary.merges]
    library = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.ignore_merges)
    )
    if rule.nfc:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = rule.build(add_prefix_space=vocabulary.add_space_prefix is True)
    for kinds, special in ((SPECIAL_TYPES, True), (frozenset({TokenType.USER_DEFINED}), False)):
        library.add_tokens(
            [
                AddedToken(vocabulary.tokens[token_id], normalized=False, special=special)
                for token_id in vocabulary.ids_of(kinds)
            ]
        )
    return library


def _merge_pair(merge: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    """The two pieces of a merge, checked: the library panics where one is not in ``vocab``."""
    # A piece may begin with the separating space, so it is looked for behind the first character.
    cut = merge.find(" ", 1)
    left, right = merge[:cut], merge[cut + 1 :]
    if cut == -1 or not (left in vocab and right in vocab and left + right in vocab):
        raise TokenizerRefusal(
            f"the merge {quoted(merge)} (tokenizer.ggml.merges) does not join two pieces of the"
            " vocabulary to a third; convert the model again"
        )
    return left, right
