"""Prompts of several cases; most are what tokenizers and chat templates are likely to get wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Messages = Sequence[Mapping[str, object]]

TOO_LONG = "a b c d e " * 300_000
"""More than any context, in a request of 3 MB."""

BEYOND_ASCII = "Repeat exactly, nothing else: 🙂🙃😀 naïve 日本語 🙂🙃😀"
"""A text after which models write characters of several bytes, and of several tokens."""

TEXTS: Mapping[str, str] = {
    "words": "Hello, world!",
    "printed question": "What is the capital of France?",
    "printed prompt": "The capital of France is",
    "space at both ends": " leading and trailing ",
    "contractions": "I'M sure they'll say it's 'their'S, don't you'd we've",
    "numbers": "snake_case camelCase HTTPServer x86_64 3.14159 1234567890 1,000,000 ١٢٣ ⅷ ½ 10²",
    "code": "def f(x):\n    return {'a': [x**2 for x in range(10)]}  # ok\n\n\n\tend\r\n\r\n",
    "kinds of space": "The quick brown fox\tjumps\u00a0over\u2003the\u3000lazy dog",
    "runs of space": "  two   three    four     five\n \n  \n\n   \n\t\t \t",
    "line ends": "tab\tnew\nline\rreturn\r\nboth \n space\n\n  two",
    "letters with marks": "Füße naïve café Ærøskøbing Łódź İstanbul ſtraße K",
    "marks on their own": "cafe\u0301 n\u0303 a\u030a\u0323 \u1e9b\u0323 ﬁ ﬃ",
    "Cyrillic": "Съешь же ещё этих мягких французских булок",
    "Greek": "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία",
    "Arabic": "السَّلامُ عَلَيْكُمْ ورحمة الله",
    "Hebrew": "שָׁלוֹם עולם",
    "Devanagari": "नमस्ते दुनिया क्षेत्र",
    "Tamil": "வணக்கம் உலகம்",
    "Thai": "สวัสดีชาวโลก",
    "Burmese": "မင်္ဂလာပါ ကမ္ဘာ",
    "Georgian": "ამ ხალხს გამარჯობა",
    "Ethiopic": "ሰላም ለዓለም",
    "Chinese": "你好，世界！今天天气怎么样？",
    "Japanese": "こんにちは世界。カタカナﾊﾝｶｸ",
    "Korean": "안녕하세요 세계 \u1112\u1161\u11ab",
    "beyond the basic plane": "𠜎𠜱𡃁 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐌰",
    "emoji": "👋🌍 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇯🇵🇧 👍🏽 ☺️ ✈ ❤",
    "no width": "zero\u200bwidth\u200djoin\u2060er \ufeffbom \u202ertl\u202c",
    "one letter": "a" * 300,
    "a word without end": "Pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "addresses": "https://example.org/a/b?c=d&e=f#g user@example.com C:\\dir\\file.txt",
    "JSON": '{"a": [1, 2.5e-3, null, true], "b": {"c": "\\u00e9\\n"}}',
    "markup": "<html><body class='x'>&nbsp;</body></html> <table><tr><td></td></tr></table>",
    "signs of the alphabet of bytes": "▁underline ▁▁ ▁ x▁y Ġ Ċ ĠĠ Â",
    "marks of other models": "<0x41> <0x0A> <0xFF> <unk> <s> </s> [INST] [multimodal]",
}
"""Texts by what is special about them; none holds a special token of a model that we know."""

SPECIAL: Mapping[str, str] = {
    "a turn": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "cut ones": "<|im_start|><|im_end|><|endoftext|> <|im_end|> <|im_end <|im_start|",
    "thought": "<think>\n\n</think>\n\n<tool_call>{}</tool_call><|fim_prefix|>",
}
"""Texts with special tokens, by what is special about them."""


SPECIAL_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>", "<|end|>")
"""Of models that we know."""


def message(role: str, content: object) -> Mapping[str, object]:
    """A message."""
    return {"role": role, "content": content}


def question(text: object) -> Messages:
    """One message of a user."""
    return [message("user", text)]


_SYSTEM = message("system", "Answer in one word.")
_TURNS = [
    message("user", "What is the capital of Italy?"),
    message("assistant", "The capital of Italy is Rome."),
    message("user", "And of Japan?"),
]

CONVERSATIONS: Mapping[str, Messages] = {
    "a system message": [_SYSTEM, *question("What is the capital of Japan?")],
    "an empty system message": [message("system", ""), *question("Hi")],
    "a system message of many lines": [
        message("system", "Be kind.\n\n- Be brief.\n- Be right.\n"),
        *question("Hi"),
    ],
    "several turns": _TURNS,
    "several turns after a system message": [_SYSTEM, *_TURNS],
    "an empty message": question(""),
    "a message of blanks": question(" \n "),
    "lines around a message": question("\n\nHi\n\n"),
    "an empty answer": [*question("Hi"), message("assistant", ""), *question("Go on.")],
    "an answer with a thought": [
        *question("What is 1 + 1?"),
        message("assistant", "<think>\nOne and one.\n</think>\n\n2"),
        *question("And 2 + 2?"),
    ],
}
"""Messages by what is special about them."""

CHAT_COUNTS: Mapping[str, Messages] = {
    **{what: question(text) for what, text in TEXTS.items()},
    **CONVERSATIONS,
}
"""What is counted on the chat endpoint."""

SPECIAL_CHAT_COUNTS: Mapping[str, Messages] = {
    what: question(text) for what, text in SPECIAL.items()
}
"""What is counted there for special tokens that are written in messages."""

COMPLETION_COUNTS: Mapping[str, str] = {**TEXTS, **SPECIAL}
"""What is counted on the completions endpoint."""

NEUTRAL: dict[str, float] = {"top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
"""The values that switch the sampling fields off, whatever a server's own defaults."""
AS_GOOD: dict[str, float] = {
    "top_k": 10_000_000,
    "top_p": 1,
    "min_p": 1e-300,
    "repetition_penalty": 1 + 1e-9,
}
"""Values that are not the neutral ones, and change as little."""
