"""How byte-level BPE vocabularies cut text into words before merging, by the name GGUF gives it.

A GGUF file keeps a vocabulary's merges but not its splitting rule: ``tokenizer.ggml.pre`` only
names the rule. The patterns here are those of each family's published tokenizer.json; where
llama.cpp's own pattern or missing normalization differs, the published one stands. Patterns are
for the Oniguruma engine and run one after the other, each inside the pieces the last one left.
"""

from __future__ import annotations

from attrs import frozen
from tokenizers import Regex, pre_tokenizers

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
# Letters of scripts with case, as DeepSeek's first tokenizer lists them.
_DEEPSEEK_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ"
    "Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
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
            f"the pre-tokenizer {pre!r} (tokenizer.ggml.pre) is not supported;"
            f" supported are {', '.join(sorted(_RULES))}"
        )
    return _RULES[pre]
