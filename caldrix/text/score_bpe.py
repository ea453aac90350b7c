"""SentencePiece's BPE from scores: the tokenizer of Llama 2 and Gemma as GGUF files hold it.

The file has pieces with scores and no list of merges. Two neighbours merge when their
concatenation is a piece; of all such pairs the one whose piece scores best goes first. Between
pairs of one score the longer left side goes first, then the longer right side, then the piece
with the lower id, then the earlier pair: the order in which transformers writes the same
vocabulary's merges, so that ids equal the original's. Building the library's merge table from
260,000 pieces takes seconds; this machine starts from a dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from caldrix.errors import quoted
from caldrix.text.errors import TokenizerRefusal
from caldrix.text.gguf_vocabulary import PARSED_TYPES, GgufVocabulary, TokenType
from caldrix.text.pieces import BYTE_PIECE, SPACE

_MERGED_TYPES = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED})
_CACHED_WORDS = 32_768
_CACHED_LENGTH = 64

_Pair = tuple[float, int, int, int, int]
"""Negated score, negated lengths of left and right, piece, position: the smallest goes first."""


class ScoreBpe:
    """Encodes text to ids. Raises TokenizerRefusal when the vocabulary cannot write every text."""

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        if vocabulary.scores is None:
            raise TokenizerRefusal(
                "the vocabulary has no scores (tokenizer.ggml.scores), which a tokenizer.ggml.model"
                " of 'llama' needs; convert the model again"
            )
        tokens, types, scores = vocabulary.tokens, vocabulary.types, vocabulary.scores
        # Files give user-defined pieces any score; they merge before all others.
        self._pieces = {
            tokens[i].replace(" ", SPACE): (
                -inf if types[i] == TokenType.USER_DEFINED else -scores[i],
                i,
            )
            for i in vocabulary.ids_of(_MERGED_TYPES)
        }
        self._byte_ids = _byte_ids(vocabulary)
        self._unknown_id = vocabulary.unknown_id
        if len(self._byte_ids) < 256 and self._unknown_id is None:
            raise TokenizerRefusal(
                "the vocabulary has neither all 256 byte tokens nor an unknown token, so it cannot"
                " write every text; convert the model again"
            )
        self._parsed = _Trie({_as_typed(tokens[i]): i for i in vocabulary.ids_of(PARSED_TYPES)})
        self._space_prefix = vocabulary.add_space_prefix is not False
        self._words = _word_pattern(self._pieces)
        self._cached_merge = lru_cache(_CACHED_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; tokens written out in it are found first, the longest that fits."""
        ids: list[int] = []
        start = 0
        for position, end, token_id in self._parsed.find(text):
            self._encode_plain(text[start:position], ids)
            ids.append(token_id)
            start = end
        self._encode_plain(text[start:], ids)
        return ids

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        """Text between written-out tokens: each such stretch gets the space before it."""
        if text and self._space_prefix:
            text = " " + text
        for word in self._words.split(text.replace(" ", SPACE)):
            merge = self._cached_merge if len(word) <= _CACHED_LENGTH else self._merge
            ids += merge(word)

    def _merge(self, word: str) -> tuple[int, ...]:
        """The ids of ``word``, in n log n steps: a heap of pairs over linked symbols."""
        symbols = list(word)
        following = list(range(1, len(word) + 1))
        preceding = list(range(-1, len(word) - 1))
        pairs: list[_Pair] = [
            pair
            for position in range(len(word) - 1)
            if (pair := self._pair(symbols[position], symbols[position + 1], position))
        ]
        heapify(pairs)
        while pairs:
            _, left_length, right_length, _, left = heappop(pairs)
            right = following[left]
            # A pair is stale once either side has merged with something else.
            if len(symbols[left]) != -left_length or right == len(word):
                continue
            if len(symbols[right]) != -right_length:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after = following[left] = following[right]
            if after < len(word):
                preceding[after] = left
                if pair := self._pair(symbols[left], symbols[after], left):
                    heappush(pairs, pair)
            before = preceding[left]
            if before >= 0 and (pair := self._pair(symbols[before], symbols[left], before)):
                heappush(pairs, pair)
        return tuple(self._symbol_ids(symbol for symbol in symbols if symbol))

    def _pair(self, left: str, right: str, position: int) -> _Pair | None:
        piece = self._pieces.get(left + right)
        if piece is None:
            return None
        score, token_id = piece
        return score, -len(left), -len(right), token_id, position

    def _symbol_ids(self, symbols: Iterator[str]) -> Iterator[int]:
        """Pieces as they are, other characters as bytes, else a run of them as one unknown."""
        unknown_before = False
        for symbol in symbols:
            piece = self._pieces.get(symbol)
            if piece is not None:
                yield piece[1]
            elif all(byte in self._byte_ids for byte in symbol.encode()):
                yield from (self._byte_ids[byte] for byte in symbol.encode())
            else:
                if not unknown_before:
                    assert self._unknown_id is not None
                    yield self._unknown_id
                unknown_before = True
                continue
            unknown_before = False


class _Trie:
    """Finds tokens written out in a text: the leftmost, and of those the longest."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        # A node maps a character to a node, and "" to the id of the token that ends there.
        self._root: dict[str, Any] = {}
        for token, token_id in tokens.items():
            node = self._root
            for character in token:
                node = node.setdefault(character, {})
            node[""] = token_id
        first = "".join(map(re.escape, self._root))
        self._first = re.compile(f"[{first}]" if first else r"(?!)")

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Start, end and id of each token, from left to right, never overlapping."""
        position = 0
        while match := self._first.search(text, position):
            start, found = match.start(), None
            node = self._root
            for end in range(start, len(text)):
                node = node.get(text[end], {})
                if not node:
                    break
                if "" in node:
                    found = end + 1, node[""]
            if found is None:
                position = start + 1
            else:
                position = found[0]
                yield start, *found


def _as_typed(token: str) -> str:
    """How a token is found in a text. Runs of spaces are merged, not found, like any spaces."""
    return token if token.strip(" ") else token.replace(" ", SPACE)


def _byte_ids(vocabulary: GgufVocabulary) -> dict[int, int]:
    """The token of each byte that has one."""
    ids: dict[int, int] = {}
    for token_id in vocabulary.ids_of(frozenset({TokenType.BYTE})):
        match = BYTE_PIECE.fullmatch(vocabulary.tokens[token_id])
        if match is None:
            raise TokenizerRefusal(
                f"token {token_id} is marked as a byte but reads"
                f" {quoted(vocabulary.tokens[token_id])}; convert the model again"
            )
        ids[int(match[1], 16)] = token_id
    return ids


def _word_pattern(pieces: Iterable[str]) -> re.Pattern[str]:
    """Where text may be cut without changing its ids: before a space that no piece runs across."""
    crossed = set(re.findall(f"([^{SPACE}\0]){SPACE}", "\0".join(pieces)))
    uncut = "".join(map(re.escape, sorted(crossed | {SPACE})))
    return re.compile(f"(?<=[^{uncut}])(?={SPACE})")
