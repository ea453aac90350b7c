"""A tokenizer file whose tokens are bytes, some words, and as many decider labels as are wanted."""

from __future__ import annotations

import string
from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.support import miniature


def byte_tokenizer(*, words: Sequence[str] = (), labels: int = 26) -> tokenizers.Tokenizer:
    """Ids 0 to 255 are bytes in the byte-level alphabet's order, then labels, then the others.

    Of the ``labels``, A to Z are bytes, and AA, AB and so on are merged of two.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = string.ascii_uppercase
    pairs = [(first, second) for first in letters for second in letters][: max(0, labels - 26)]
    tokens = [*alphabet, *(first + second for first, second in pairs)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([miniature.START, miniature.END])
    library.add_tokens([AddedToken(word, normalized=False) for word in words])
    return library
