"""A tokenizer small enough for tests: a token a byte, three special ones, and a very long one."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from caldrix.text.tokenizer import Tokenizer

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
LONG = "L" * 2**16

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def tokenizer(*words: str) -> Tokenizer:
    """The miniature: ids 0 to 255 are bytes in the byte-level alphabet's order, then the others.

    Last come ``words``, each a token of its own.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([START, END, END_OF_TEXT])
    library.add_tokens([AddedToken(word, normalized=False) for word in (LONG, *words)])
    with tempfile.TemporaryDirectory() as directory:
        library.save(str(Path(directory, "tokenizer.json")))
        Path(directory, "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
        return Tokenizer.from_directory(Path(directory))


def ids(text: str) -> list[int]:
    """The ids of ``text``."""
    return tokenizer().encode(text)


def end_id() -> int:
    """The id that ends a generation."""
    return ids(END)[0]
