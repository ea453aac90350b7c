"""The tokenizer part of a GGUF file's metadata, checked and typed.

Keys and token types: the GGUF specification, section "Tokenizer" (ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from attrs import frozen

from caldrix.errors import quoted
from caldrix.text.errors import TokenizerRefusal

T = TypeVar("T")

_PREFIX = "tokenizer.ggml."
# A file names one end of text and one end of turn; families use more, known only by their names.
_END_NAMES = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endofturn|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<|EOT|>",
        "<EOT>",
    }
)


class TokenType(IntEnum):
    """What a vocabulary's entry is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL})
"""Types that steer a model and add nothing to a text."""
PARSED_TYPES = SPECIAL_TYPES | {TokenType.USER_DEFINED}
"""Types that are found in a text as they are written, before it is split any further."""


@frozen
class GgufVocabulary:
    """A GGUF file's tokenizer. Lists are indexed by token id; None means the key is absent."""

    model: str
    pre: str | None
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> GgufVocabulary:
        """Read the ``tokenizer.ggml.*`` keys; raises TokenizerRefusal for a wrong one."""
        keys = _Keys(metadata)
        tokens = keys.sequence("tokens", str)
        if not tokens:
            raise TokenizerRefusal(
                "the file has no vocabulary (tokenizer.ggml.tokens); use one that holds a tokenizer"
            )
        size = len(tokens)
        types = keys.sequence("token_type", int, size) or [TokenType.NORMAL] * size
        eos_id = keys.token_id("eos_token_id", size)
        bos_id = keys.token_id("bos_token_id", size)
        add_bos, add_eos = keys.one("add_bos_token", bool), keys.one("add_eos_token", bool)
        for key, asked, token_id in (("bos", add_bos, bos_id), ("eos", add_eos, eos_id)):
            if asked and token_id is None:
                raise TokenizerRefusal(
                    f"{_PREFIX}add_{key}_token is true, but {_PREFIX}{key}_token_id is missing;"
                    " convert the model again"
                )
        named = {keys.token_id(key, size) for key in ("eot_token_id", "eom_token_id")} | {eos_id}
        marked = {
            token_id
            for token_id, kind in enumerate(types)
            if kind in PARSED_TYPES and tokens[token_id] in _END_NAMES
        }
        return cls(
            model=keys.one("model", str) or "none",
            pre=keys.one("pre", str),
            tokens=tokens,
            types=types,
            scores=keys.sequence("scores", float, size),
            merges=keys.sequence("merges", str),
            bos_id=bos_id,
            eos_id=eos_id,
            unknown_id=keys.token_id("unknown_token_id", size),
            end_ids=frozenset(marked | {token_id for token_id in named if token_id is not None}),
            add_bos=add_bos,
            add_eos=add_eos,
            add_space_prefix=keys.one("add_space_prefix", bool),
        )

    def ids_of(self, kinds: frozenset[TokenType]) -> list[int]:
        """The ids of the entries whose type is one of ``kinds``, in order."""
        return [token_id for token_id, kind in enumerate(self.types) if kind in kinds]


@frozen
class _Keys:
    """Typed access to the ``tokenizer.ggml.*`` keys."""

    metadata: Mapping[str, object]

    def one(self, key: str, kind: type[T]) -> T | None:
        value = self.metadata.get(_PREFIX + key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TokenizerRefusal(
                f"{_PREFIX}{key} must be of type {kind.__name__}: {quoted(value)}"
            )
        return value

    def sequence(self, key: str, kind: type[T], size: int | None = None) -> Sequence[T] | None:
        value = self.metadata.get(_PREFIX + key)
        if value is None:
            return None
        # GGUF arrays are homogeneous: the first element speaks for all.
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or (value and not isinstance(value[0], kind))
        ):
            raise TokenizerRefusal(f"{_PREFIX}{key} must be an array of {kind.__name__}")
        if size is not None and len(value) != size:
            raise TokenizerRefusal(f"{_PREFIX}{key} has {len(value)} entries for {size} tokens")
        return value

    def token_id(self, key: str, size: int) -> int | None:
        value = self.one(key, int)
        if value is not None and not 0 <= value < size:
            raise TokenizerRefusal(f"{_PREFIX}{key} is {value}, outside a vocabulary of {size}")
        return value
