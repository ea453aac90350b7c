"""Tokenizers: ids as the reference gives them, and bytes back."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from caldrix import files
from caldrix.text import pretokenizers
from caldrix.text.errors import InvalidText, TokenizerRefusal
from caldrix.text.gguf_vocabulary import TokenType
from caldrix.text.pieces import BYTE_ALPHABET
from caldrix.text.template import ChatTemplate
from caldrix.text.template_files import template_of_directory
from caldrix.text.tokenizer import Difference, Tokenizer
from caldrix.weights.gguf import open_gguf

CAPTURED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "references" / "data" / "tokenizers.json").read_text("utf-8")
)


# Real vocabularies


def check_captured(tokenizer: Tokenizer, name: str) -> None:
    assert len(CAPTURED) > 40
    for case in CAPTURED:
        expected = case[name]
        # The library repeats a BOS that the text already has.
        if expected[:2] == [tokenizer.bos_id] * 2:
            expected = expected[1:]
        assert tokenizer.encode(case["text"]) == expected, case["text"]


def test_smollm2(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as checkpoint:
        tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    check_captured(tokenizer, "smollm2")
    for case in CAPTURED:
        assert tokenizer.decode(case["smollm2"], skip_special_tokens=False) == case["text"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.end_ids == {0, 2}
    assert tokenizer.vocab_size == 49152


def test_vocabularies_are_told_apart(smollm2_path: Path, qwen3_tokenizer_dir: Path) -> None:
    with open_gguf(smollm2_path) as checkpoint:
        smollm2 = Tokenizer.from_gguf(checkpoint.metadata)
        filled_up = dict(checkpoint.metadata)
    qwen3 = Tokenizer.from_directory(qwen3_tokenizer_dir)
    assert smollm2.first_difference(qwen3) == Difference(0, "<|endoftext|>", "!")
    assert smollm2.first_difference(smollm2) is None
    # The same vocabulary, with an unused token more.
    for key, more in (("tokens", "[PAD49152]"), ("token_type", int(TokenType.UNUSED))):
        name = f"tokenizer.ggml.{key}"
        filled_up[name] = [*cast("Sequence[object]", filled_up[name]), more]
    longer = Tokenizer.from_gguf(filled_up)
    assert longer.vocab_size == smollm2.vocab_size + 1
    assert smollm2.first_difference(longer) is None
    assert longer.first_difference(smollm2) is None


def test_gemma3(gemma3_path: Path) -> None:
    with open_gguf(gemma3_path) as checkpoint:
        tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    check_captured(tokenizer, "gemma3")
    for case in CAPTURED:
        ids = tokenizer.encode(case["text"], add_special_tokens=False)
        # The vocabulary writes a space as U+2581, and reads both as one.
        assert tokenizer.decode(ids, skip_special_tokens=False) == case["text"].replace("▁", " ")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (2, 1)
    assert tokenizer.end_ids == {1, 106}
    assert tokenizer.token_bytes(238 + 0xE2) == b"\xe2"


def test_qwen3(qwen3_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.from_directory(qwen3_tokenizer_dir)
    check_captured(tokenizer, "qwen3")
    for case in CAPTURED:
        text = unicodedata.normalize("NFC", case["text"])
        assert tokenizer.decode(case["qwen3"], skip_special_tokens=False) == text
    # Thinking is text a client sees; turn markers are not.
    assert tokenizer.token_bytes(151667) == b"<think>"
    assert tokenizer.token_bytes(151644) == b""
    # Prompt lengths that the documentation's examples print.
    assert len(tokenizer.encode("The capital of France is")) == 5
    source = template_of_directory(qwen3_tokenizer_dir)
    assert source is not None
    chat = ChatTemplate(source, "", "<|im_end|>").render(
        [{"role": "user", "content": "What is the capital of France?"}]
    )
    assert len(tokenizer.encode_prompt(chat)) == 15


# A miniature, as tokenizer.json and as GGUF metadata

WORDS = [*BYTE_ALPHABET, "he", "ll", "hell", "hello", "Ġw", "Ġwo", "12", "Ġhello"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2", "Ġ hello"]
MARKERS = ["<bos>", "<eos>", "<turn>"]
TOKENS = [*WORDS, *MARKERS, "<tool>"]
BOS, EOS, TURN, TOOL = range(len(WORDS), len(TOKENS))


def miniature_metadata(**changes: object) -> dict[str, object]:
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": TOKENS,
        "merges": MERGES,
        "token_type": [TokenType.NORMAL] * len(WORDS)
        + [TokenType.CONTROL] * len(MARKERS)
        + [TokenType.USER_DEFINED],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "eot_token_id": TURN,
    }
    metadata |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def write_miniature(directory: Path, **config: object) -> Library:
    """Write the miniature's files; the same tokenizer in the library."""
    vocab = {token: token_id for token_id, token in enumerate(WORDS)}
    library = Library(models.BPE(vocab, [(a, b) for a, b in map(str.split, MERGES)]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(MARKERS)
    library.add_tokens([AddedToken("<tool>", normalized=False)])
    library.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    library.enable_truncation(4)
    library.enable_padding(length=4)
    library.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    library.no_truncation()
    library.no_padding()
    return library


def test_a_directory_is_read_whole_and_never_cuts_a_prompt(tmp_path: Path) -> None:
    library = write_miniature(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, TURN]}))
    tokenizer = Tokenizer.from_directory(tmp_path)
    text = "hello hello world <turn>1234<tool>"
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.vocab_size == len(TOKENS)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert tokenizer.end_ids == {EOS, TURN}


@pytest.mark.parametrize("text", ["<bos>hello", "hello<bos>", "<bos><bos>", ""])
def test_bos_comes_once(tmp_path: Path, text: str) -> None:
    library = write_miniature(tmp_path)
    typed = library.encode(text, add_special_tokens=False).ids
    tokenizer = Tokenizer.from_directory(tmp_path)
    expected = typed if typed[:1] == [BOS] else [BOS, *typed]
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode_prompt(text) == typed
    assert Tokenizer.from_gguf(miniature_metadata(add_bos_token=True)).encode(text) == expected


def test_flags_overrule_the_post_processor(tmp_path: Path) -> None:
    write_miniature(tmp_path, add_bos_token=False, add_eos_token=True)
    assert Tokenizer.from_directory(tmp_path).encode("he") == [TOKENS.index("he"), EOS]


def test_tokens_that_only_the_configuration_has_are_added(tmp_path: Path) -> None:
    entry = {"content": "<new>", "special": True}
    write_miniature(tmp_path, added_tokens_decoder={str(len(TOKENS)): entry})
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode_prompt("<new>") == [len(TOKENS)]
    assert tokenizer.token_bytes(len(TOKENS)) == b""
    assert tokenizer.decode([len(TOKENS)], skip_special_tokens=False) == "<new>"
    write_miniature(tmp_path, added_tokens_decoder={"9999": entry})
    with pytest.raises(TokenizerRefusal, match="id 9999"):
        Tokenizer.from_directory(tmp_path)


def test_special_tokens_add_no_text_and_added_ones_do() -> None:
    tokenizer = Tokenizer.from_gguf(miniature_metadata())
    ids = tokenizer.encode_prompt("hello<turn> wo<tool>\n€")
    assert tokenizer.decode(ids) == "hello wo<tool>\n€"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hello<turn> wo<tool>\n€"
    assert b"".join(map(tokenizer.token_bytes, ids)) == "hello wo<tool>\n€".encode()
    # Rows of an embedding that no token names.
    assert tokenizer.token_bytes(len(TOKENS) + 5) == b""


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_gguf_and_tokenizer_json_agree(text: str) -> None:
    tokenizer = Tokenizer.from_gguf(miniature_metadata())
    library = Library(
        models.BPE({t: i for i, t in enumerate(WORDS)}, [(a, b) for a, b in map(str.split, MERGES)])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    assert tokenizer.encode_prompt(text) == library.encode(text).ids
    assert tokenizer.decode(tokenizer.encode_prompt(text)) == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 1234 é\u0301!", ["it", "'s", " 1234", " é", "\u0301!"]),
        ("smollm", "it's 1234", ["it", "'s", " ", "1", "2", "3", "4"]),
        ("llama-bpe", "IT'S 1234\n\nx", ["IT", "'S", " ", "123", "4", "\n\n", "x"]),
        ("qwen2", "a1234 x", ["a", "1", "2", "3", "4", " x"]),
        ("qwen2", "q\u0304x", ["q", "\u0304x"]),
        ("qwen35", "q\u0304x 12", ["q\u0304x", " ", "1", "2"]),
        ("gpt-4o", "camelCase don't", ["camel", "Case", " don't"]),
        ("tekken", "camelCase don't 12", ["camel", "Case", " don", "'t", " ", "1", "2"]),
        ("deepseek-llm", "x Éé\n中文 12", ["x", " Éé", "\n", "中文", " ", "1", "2"]),
        ("deepseek-coder", "x (y)", ["x", " (", "y", ")"]),
        ("deepseek-v3", "x1234中文,abc", ["x", "123", "4", "中文", ",abc"]),
    ],
)
def test_pre_tokenizers_cut_as_their_families_do(pre: str, text: str, words: list[str]) -> None:
    cuts = pretokenizers.named(pre).build(add_prefix_space=False).pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cuts] == words


def test_a_leading_space_is_added_and_taken_off() -> None:
    pieces = ["<unk>", "<s>", "▁", "a", "▁a", "b"]
    metadata = miniature_metadata(
        model="llama",
        tokens=pieces,
        scores=[0.0, 0.0, -3.0, -3.0, -1.0, -3.0],
        token_type=[TokenType.UNKNOWN, TokenType.CONTROL, *[TokenType.NORMAL] * 4],
        unknown_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        eot_token_id=None,
    )
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("a ab") == [1, 4, 4, 5]
    assert tokenizer.decode([1, 4, 4, 5]) == "a ab"
    # Within a text, as in a generation, the space belongs to it.
    assert tokenizer.token_bytes(4) == b" a"


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "'none'"),
        ({"model": "t5"}, "'t5'"),
        ({"pre": None}, "does not name its pre-tokenizer"),
        ({"pre": "klingon"}, "'klingon'"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": [1, 2]}, "tokens must be an array of str"),
        ({"merges": None}, "no merges"),
        ({"merges": ["he"]}, "'he'"),
        ({"merges": ["he w"]}, "'he w'"),
        ({"merges": ["nowhere h"]}, "'nowhere h'"),
        ({"token_type": [1]}, "1 entries"),
        ({"eos_token_id": 10**6}, "outside a vocabulary"),
        ({"add_bos_token": 1}, "type bool"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id is missing"),
        ({"model": "llama"}, "no scores"),
    ],
)
def test_a_gguf_tokenizer_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerRefusal, match=message):
        Tokenizer.from_gguf(miniature_metadata(**changes))


def test_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TokenizerRefusal, match=r"tokenizer\.json is missing"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerRefusal, match="not a tokenizer"):
        Tokenizer.from_directory(tmp_path)
    write_miniature(tmp_path, bos_token="<absent>")
    with pytest.raises(TokenizerRefusal, match="bos_token '<absent>'"):
        Tokenizer.from_directory(tmp_path)
    write_miniature(tmp_path, add_bos_token="yes")
    with pytest.raises(TokenizerRefusal, match="add_bos_token must be true or false"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerRefusal, match=r"tokenizer_config\.json: it is not JSON"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "more than 4300 digits"),
        ("[" * 10**5, "nested too deeply"),
        ("[]", "not an object"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
    ],
)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
def test_a_file_of_loose_json_is_refused(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    write_miniature(tmp_path)
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(TokenizerRefusal, match=rf"{re.escape(name)}.* {message}"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_never_ends_is_refused(tmp_path: Path, name: str) -> None:
    write_miniature(tmp_path)
    path = tmp_path / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TokenizerRefusal, match=rf"{re.escape(name)} is not a regular file"):
        Tokenizer.from_directory(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(TokenizerRefusal, match=rf"{re.escape(name)} is not a regular file"):
        Tokenizer.from_directory(tmp_path)


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_text('{"a":1}')
    assert files.read_json_object(path, refusal=TokenizerRefusal, limit=7) == {"a": 1}
    with pytest.raises(TokenizerRefusal, match="over the limit of 6 bytes"):
        files.read_json_object(path, refusal=TokenizerRefusal, limit=6)


@pytest.mark.parametrize("key", ["model", "pre", "merges", "add_bos_token"])
def test_a_refusal_quotes_little_of_a_file(key: str) -> None:
    long = "x" * 10**5
    with pytest.raises(TokenizerRefusal, match=r"'xxxx+…'") as caught:
        Tokenizer.from_gguf(miniature_metadata(**{key: [long] if key == "merges" else long}))
    assert len(str(caught.value)) < 500


def test_a_reading_tokenizer_does_not_write(tmp_path: Path) -> None:
    library = Library(models.WordPiece({"[UNK]": 0, "he": 1, "##y": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.encode("hey") == [1, 2]
    with pytest.raises(TokenizerRefusal, match="read text but not write"):
        tokenizer.token_bytes(1)


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InvalidText, match=r"^the text holds '\\ud83d', half a surrogate pair,"):
        Tokenizer.from_gguf(miniature_metadata()).encode("ab\ud83d")


@pytest.mark.parametrize("content", ["", "{}", '{"version": "1.0", "model": {"type": "none"}}'])
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: str) -> None:
    write_miniature(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerRefusal, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.from_directory(tmp_path)
