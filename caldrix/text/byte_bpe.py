"""Byte-level BPE from a GGUF vocabulary: the pipeline of GPT-2, Llama 3, Qwen and their kin."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, models, normalizers

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
    try:
        model = models.BPE(
            vocab=vocab,
            merges=[_merge_pair(merge) for merge in vocabulary.merges],
            ignore_merges=rule.ignore_merges,
        )
    except Exception as error:  # the library raises nothing more specific
        raise TokenizerRefusal(
            f"the vocabulary and its merges do not fit ({error}); convert the model again"
        ) from error
    library = tokenizers.Tokenizer(model)
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


def _merge_pair(merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not (left and separator and right):
        raise TokenizerRefusal(
            f"the merge {merge!r} (tokenizer.ggml.merges) is not two pieces with a space between"
        )
    return left, right
