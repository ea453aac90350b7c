"""The goldens of counts, held against tokenizers that have nothing to do with ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from caldrix.text.template import ChatTemplate
from caldrix.text.template_files import template_of_directory
from caldrix.text.tokenizer import Tokenizer
from caldrix_conformance.capture import Capture, CountTable, Origin, read_golden_file
from caldrix_conformance.prompts import TEXTS
from caldrix_conformance.resources import goldens_directory
from tests.references.arrays import load_arrays
from tests.references.capture_qwen3_counts import Counter, captures

DATA = Path(__file__).parents[1] / "references" / "data"
GOLDENS = goldens_directory("caldrix")


def counts(name: str) -> Mapping[str, int]:
    golden = read_golden_file(GOLDENS / name, name)
    assert isinstance(golden, CountTable)
    return {what: count.tokens for what, count in golden.counts.items()}


@pytest.fixture(scope="module")
def llama_cpp() -> Mapping[str, int]:
    """What llama.cpp counts with SmolLM2's file, by text."""
    captured = json.loads((DATA / "tokenizers.json").read_text())
    return {each["text"]: len(each["smollm2"]) for each in captured}


def test_smollm2_counts_texts_as_llama_cpp_does(llama_cpp: Mapping[str, int]) -> None:
    golden = read_golden_file(GOLDENS / "completions/smollm2-135m-instruct/counts.json", "")
    assert isinstance(golden, CountTable)
    seen = {each.prompt: each.tokens for each in golden.counts.values()}
    compared = {text: count for text, count in llama_cpp.items() if text in seen}
    assert {text: seen[text] for text in compared} == compared
    # The two that the document prints are known from the answers that were captured.
    assert len(seen) - len(compared) == 2
    answers = load_arrays(DATA / "llama_cpp.npz")
    assert seen[TEXTS["printed prompt"]] == len(answers["smollm2/6/prompt"])


def test_smollm2_counts_messages_as_llama_cpp_does(llama_cpp: Mapping[str, int]) -> None:
    seen = counts("chat/smollm2-135m-instruct/counts.json")
    answers = load_arrays(DATA / "llama_cpp.npz")
    assert seen["printed question"] == len(answers["smollm2/0/prompt"])
    # Letters beside the template's line feed make no token with it.
    frame = seen["words"] - llama_cpp[TEXTS["words"]]
    alone = [
        what
        for what, text in TEXTS.items()
        if text in llama_cpp and text[0].isalpha() and not text[-1].isspace()
    ]
    assert {what: seen[what] - frame for what in alone} == {
        what: llama_cpp[TEXTS[what]] for what in alone
    }
    assert len(alone) > 20


def test_qwen3_counts_as_its_own_tokenizer_does(qwen3_tokenizer_dir: Path) -> None:
    for name, text in captures(Counter(qwen3_tokenizer_dir)).items():
        assert (GOLDENS / name).read_text() == text, name


def test_ours_counts_as_qwen3_s_own_does(qwen3_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.from_directory(qwen3_tokenizer_dir)
    source = template_of_directory(qwen3_tokenizer_dir)
    assert source is not None
    template = ChatTemplate(source, tokenizer.bos_token or "", tokenizer.eos_token or "")
    compared = 0
    for path in sorted(GOLDENS.glob("*/qwen3/*.json")):
        golden = read_golden_file(path, path.name)
        assert isinstance(golden, CountTable)
        for what, count in golden.counts.items():
            text = count.prompt if isinstance(count.prompt, str) else template.render(count.prompt)
            assert len(tokenizer.encode_prompt(text)) == count.tokens, what
            compared += 1
    assert compared > 80


def test_the_printed_counts_are_those_of_qwen3_s_own_tokenizer(qwen3_tokenizer_dir: Path) -> None:
    counter = Counter(qwen3_tokenizer_dir)
    seen, printed = [], []
    for path in sorted(GOLDENS.glob("*/document-*.json")):
        golden = read_golden_file(path, path.name)
        assert isinstance(golden, Capture)
        assert golden.origin is Origin.DOCUMENT
        usage = golden.canonical.get("body", {}).get("usage", {})
        if "prompt_tokens" not in usage or golden.model != "Qwen/Qwen3-0.6B":
            continue
        body = golden.request.body or {}
        printed.append(usage["prompt_tokens"])
        if "messages" in body:
            seen.append(counter.messages(body["messages"]))
        else:
            seen.append(counter.prompt(body["prompt"]))
    assert seen == printed == [15, 5]
