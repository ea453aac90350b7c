"""Text to token ids and back, as a model's own tokenizer does it.

One class over two sources: a model directory's tokenizer.json, which the tokenizers library runs
as it is, and a GGUF file's metadata, from which the same pipeline is rebuilt. Ids equal those of
transformers' fast tokenizers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import tokenizers
from attrs import frozen

from caldrix.errors import quoted
from caldrix.files import read_text
from caldrix.text import pretokenizers
from caldrix.text.byte_bpe import byte_level_bpe
from caldrix.text.errors import InvalidText, TokenizerRefusal
from caldrix.text.gguf_vocabulary import SPECIAL_TYPES, GgufVocabulary, TokenType
from caldrix.text.pieces import ByteLevel, PieceBytes, SentencePiece, from_decoder
from caldrix.text.score_bpe import ScoreBpe
from caldrix.text.tokenizer_files import TokenizerFiles, read_tokenizer_files

# The library would start threads of its own for a batch, and nobody would end them.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


@frozen
class _LibraryEncoder:
    library: tokenizers.Tokenizer

    def encode(self, text: str) -> list[int]:
        # Unlike `encode`, a batch lets other threads run meanwhile: a long text takes seconds.
        (encoding,) = self.library.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


@frozen
class _Vocabulary:
    """A vocabulary's entries by id; special ones steer the model, added ones are written as is."""

    pieces: Mapping[int, str]
    special: frozenset[int]
    added: frozenset[int]
    size: int


@frozen
class Difference:
    """An id that stands for different tokens in two vocabularies."""

    token_id: int
    here: str
    there: str


class Tokenizer:
    """A model's tokenizer. Immutable, and safe to use from several threads."""

    def __init__(
        self,
        encoder: _Encoder,
        vocabulary: _Vocabulary,
        piece_bytes: PieceBytes | None,
        *,
        prefix: Iterable[int],
        suffix: Iterable[int],
        bos_id: int | None,
        eos_id: int | None,
        end_ids: frozenset[int],
    ) -> None:
        self._encoder = encoder
        self._pieces = vocabulary.pieces
        self._special = vocabulary.special | end_ids
        self._added = vocabulary.added
        self._piece_bytes = piece_bytes
        self._prefix, self._suffix = list(prefix), list(suffix)
        # Filled as tokens are met; at most an entry for each token.
        self._known_bytes: dict[int, bytes] = {}
        self.vocab_size = vocabulary.size
        """One more than the largest id; a model's embedding may have more rows."""
        self.bos_id, self.eos_id = bos_id, eos_id
        self.bos_token = None if bos_id is None else self._pieces[bos_id]
        self.eos_token = None if eos_id is None else self._pieces[eos_id]
        self.end_ids = end_ids
        """Every token that ends a generation: end of text and end of turn."""

    @classmethod
    def from_directory(cls, directory: Path) -> Tokenizer:
        """Read tokenizer.json and the files beside it; raises TokenizerRefusal."""
        files = read_tokenizer_files(directory)
        library = _read_library(directory / "tokenizer.json")
        _add_missing(library, files, directory)
        bos_id = _special_id(library, files.bos_token, directory, "bos_token")
        eos_id = _special_id(library, files.eos_token, directory, "eos_token")
        prefix, suffix = _template(library)
        # As in transformers: the flags, where a file has them, overrule the template.
        if files.add_bos is not None or files.add_eos is not None:
            prefix = [bos_id] if files.add_bos and bos_id is not None else []
            suffix = [eos_id] if files.add_eos and eos_id is not None else []
        decoder = library.decoder
        return cls(
            _LibraryEncoder(library),
            _library_vocabulary(library),
            from_decoder(None if decoder is None else decoder.__getstate__()),
            prefix=prefix,
            suffix=suffix,
            bos_id=bos_id,
            eos_id=eos_id,
            end_ids=files.end_ids | ({eos_id} if eos_id is not None else set()),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Rebuild the tokenizer that a GGUF file's metadata describes; raises TokenizerRefusal."""
        vocabulary = GgufVocabulary.from_metadata(metadata)
        match vocabulary.model:
            case "gpt2":
                rule = pretokenizers.named(vocabulary.pre)
                encoder: _Encoder = _LibraryEncoder(byte_level_bpe(vocabulary, rule))
                piece_bytes: PieceBytes = ByteLevel()
                adds_bos = rule.adds_bos
            case "llama":
                encoder = ScoreBpe(vocabulary)
                piece_bytes = SentencePiece(vocabulary.add_space_prefix is not False)
                adds_bos = True
            case other:
                raise TokenizerRefusal(
                    f"the tokenizer model {quoted(other)} (tokenizer.ggml.model) is not supported;"
                    " supported are 'gpt2' and 'llama'"
                )
        add_bos = adds_bos if vocabulary.add_bos is None else vocabulary.add_bos
        bos_id, eos_id = vocabulary.bos_id, vocabulary.eos_id
        return cls(
            encoder,
            _Vocabulary(
                pieces=dict(enumerate(vocabulary.tokens)),
                special=frozenset(vocabulary.ids_of(SPECIAL_TYPES)),
                added=frozenset(vocabulary.ids_of(frozenset({TokenType.USER_DEFINED}))),
                size=len(vocabulary.tokens),
            ),
            piece_bytes,
            prefix=[bos_id] if add_bos and bos_id is not None else [],
            suffix=[eos_id] if vocabulary.add_eos and eos_id is not None else [],
            bos_id=bos_id,
            eos_id=eos_id,
            end_ids=vocabulary.end_ids,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of ``text``; special tokens written out in it are parsed.

        ``add_special_tokens`` puts around it what the tokenizer's own settings ask for. BOS comes
        once: a text that begins with it does not get another. Raises InvalidText for half a
        surrogate pair, which JSON can spell and UTF-8 cannot.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(
                f"the text holds {text[error.start]!a}, half a surrogate pair, which is not a"
                " character"
            ) from error
        ids = self._encoder.encode(text)
        if not add_special_tokens:
            return ids
        has_bos = bool(ids) and self._prefix == [self.bos_id] and ids[0] == self.bos_id
        return (ids if has_bos else self._prefix + ids) + self._suffix

    def encode_prompt(self, rendered: str) -> list[int]:
        """The ids of a rendered chat template, which writes every special token itself."""
        return self.encode(rendered, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text.

        Empty for a special token, and, as in transformers, for an id that names no token: a
        model's embedding may have more rows than its vocabulary has entries. A piece's leading
        space is kept, as within a text. Raises TokenizerRefusal for a tokenizer whose tokens have
        no bytes of their own (WordPiece).
        """
        known = self._known_bytes.get(token_id)
        if known is None:
            known = b"" if token_id in self._special else self._written_bytes(token_id)
            self._known_bytes[token_id] = known
        return known

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids`` as a whole, without the space that encoding put before it.

        ``skip_special_tokens=False`` writes special tokens out.
        """
        to_bytes = self.token_bytes if skip_special_tokens else self._written_bytes
        text = b"".join(map(to_bytes, ids)).decode("utf-8", "replace")
        if self._piece_bytes is not None and self._piece_bytes.strips_leading_space:
            return text.removeprefix(" ")
        return text

    def longest_token(self) -> int:
        """Bytes of the longest token as it stands in a text, special ones written out; 1 at least.

        It goes through the vocabulary each time. Raises TokenizerRefusal as `token_bytes` does.
        """
        lengths = (len(self._written_bytes(token_id)) for token_id in self._pieces)
        return max(lengths, default=0) or 1

    def first_difference(self, other: Tokenizer) -> Difference | None:
        """The first id that is one token here and another one there; None if there is none.

        An id that one of them lacks is no difference: files of one vocabulary are filled up with
        unused tokens in different ways.
        """
        for token_id in sorted(self._pieces.keys() & other._pieces.keys()):
            if self._pieces[token_id] != other._pieces[token_id]:
                return Difference(token_id, self._pieces[token_id], other._pieces[token_id])
        return None

    def _written_bytes(self, token_id: int) -> bytes:
        if self._piece_bytes is None:
            raise TokenizerRefusal(
                "this tokenizer's tokens have no bytes of their own (its decoder joins whole"
                " words), so it can read text but not write it; choose a generating model"
            )
        piece = self._pieces.get(token_id)
        if piece is None:
            return b""
        added = token_id in self._added or token_id in self._special
        return self._piece_bytes.to_bytes(piece, added=added)


def _read_library(path: Path) -> tokenizers.Tokenizer:
    content = read_text(path, refusal=TokenizerRefusal)
    try:
        library = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing more specific
        reason = quoted(str(error), 200)
        raise TokenizerRefusal(f"{path} is not a tokenizer ({reason}); fetch it again") from error
    # Some files carry the settings of a training run; a prompt is never cut or filled up.
    library.no_truncation()
    library.no_padding()
    return library


def _add_missing(library: tokenizers.Tokenizer, files: TokenizerFiles, directory: Path) -> None:
    """Add the tokens that only tokenizer_config.json has, at the ids it gives them."""
    known = library.get_added_tokens_decoder()
    for token_id, token in sorted(files.added_tokens.items()):
        if token_id in known:
            continue
        library.add_tokens([token])
        if library.token_to_id(token.content) != token_id:
            raise TokenizerRefusal(
                f"{directory / 'tokenizer_config.json'} puts {quoted(token.content)} at id"
                f" {token_id}, where tokenizer.json has another token; fetch both again"
            )


def _special_id(
    library: tokenizers.Tokenizer, token: str | None, directory: Path, key: str
) -> int | None:
    if token is None:
        return None
    token_id = library.token_to_id(token)
    if token_id is None:
        raise TokenizerRefusal(
            f"{directory}: the {key} {quoted(token)} is not in tokenizer.json; fetch the"
            " files again"
        )
    return token_id


def _template(library: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the library's own post-processor puts before and after a text."""
    probe = "x"
    bare = library.encode(probe, add_special_tokens=False).ids
    whole = library.encode(probe).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    raise TokenizerRefusal("the tokenizer's post-processor changes a text's own tokens")


def _library_vocabulary(library: tokenizers.Tokenizer) -> _Vocabulary:
    pieces = {token_id: piece for piece, token_id in library.get_vocab().items()}
    added = library.get_added_tokens_decoder()
    return _Vocabulary(
        pieces=pieces,
        special=frozenset(token_id for token_id, token in added.items() if token.special),
        added=frozenset(added),
        size=max(pieces, default=-1) + 1,
    )
