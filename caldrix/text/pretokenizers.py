"""How byte-level BPE vocabularies cut text into words before merging, by the name GGUF gives it.

A GGUF file keeps a vocabulary's merges but not its splitting rule: ``tokenizer.ggml.pre`` only
names the rule. The patterns here are those of each family's published tokenizer.json; where
llama.cpp's own pattern or missing normalization differs, the published one stands. Patterns are
for the Oniguruma engine and run one after the other, each inside the pieces the last one left.
"""

from __future__ import annotations

import re

from attrs import frozen
from tokenizers import Regex, pre_tokenizers

from caldrix.errors import quoted
from caldrix.text.errors import TokenizerRefusal


@frozen
class PreTokenizer:
    """A splitting rule and what goes with it in the family's tokenizer."""

    splits: tuple[str, ...]
    """Patterns whose matches, and what lies between them, become words."""
    nfc: bool = False
    """Whether text is brought to Unicode's normalization form C first."""
    ignore_merges: bool = False
    """Whether a word that is in the vocabulary is taken whole, without merging."""
    adds_bos: bool = False
    """Whether a text starts with BOS when the file does not say."""

    def build(self, add_prefix_space: bool) -> pre_tokenizers.PreTokenizer:
        """The rule as the tokenizers library runs it, ending in GPT-2's byte alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.splits
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> str:
    """The pattern of GPT-4's first vocabulary, with ``digits`` for its runs of numbers."""
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased(contraction: str, digits: str) -> str:
    """The pattern of GPT-4o's vocabulary: a word may start in upper case and goes on in lower."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# Letters of scripts with case, as DeepSeek's first tokenizer lists them: code points and ranges.
_DEEPSEEK_CASED = re.sub(
    r"\s*([0-9A-F]+)",
    r"\\x{\1}",
    """
    0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF
    0370-0373 0376 0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481
    048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77
    1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D
    1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4
    1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
    213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D
    A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A
    10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
    """,
).strip()
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"

_GPT2_RULE = PreTokenizer((_GPT2,))
_DIGITS_RULE = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_RULE = PreTokenizer((_cl100k(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_GPT4O_RULE = PreTokenizer((_cased(rf"{_CONTRACTION}?", r"\p{N}{1,3}"),))

_RULES = {
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "command-r": PreTokenizer(_DIGITS_RULE.splits, nfc=True),
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "glm4": PreTokenizer(_LLAMA3_RULE.splits),
    "chatglm-bpe": PreTokenizer(_LLAMA3_RULE.splits),
    "qwen2": PreTokenizer((_cl100k(r"\p{N}"),), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_cl100k(r"\p{N}"),)),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "gpt-4o": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
    "tekken": PreTokenizer((_cased("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_CASED}]+",
            r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
    ),
    "deepseek-v3": PreTokenizer(
        (r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", _DEEPSEEK_V3)
    ),
}


def named(pre: str | None) -> PreTokenizer:
    """The rule that ``tokenizer.ggml.pre`` names; raises TokenizerRefusal for an unknown one."""
    if pre is None:
        raise TokenizerRefusal(
            "the file does not name its pre-tokenizer (tokenizer.ggml.pre), so text cannot be"
            " split as the model learned it; convert the model again with a current converter"
        )
    if pre not in _RULES:
        raise TokenizerRefusal(
            f"the pre-tokenizer {quoted(pre)} (tokenizer.ggml.pre) is not supported;"
            f" supported are {', '.join(sorted(_RULES))}"
        )
    return _RULES[pre]
