"""A language model of fifty words: deterministic logits, sampled by the book.

It exists to be right in every way a client can see, so that whatever the suite reports of a server
built on it was broken on purpose.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from zlib import crc32

from attrs import evolve, frozen

END, HALF, OTHER_HALF = 0, 1, 2

# The document's own two answers of Qwen3-0.6B, token by token.
_THINKING = ["<think>", "\n", "Okay", ",", " the", " user", " is", " asking", " for", " the"]
_THINKING += [" capital", " of", " France", ".", " I", " know"]
_RIVIERA = [" Paris", ".", " The", " capital", " of", " Italy", " is", " Rome"]
SCRIPTS = {
    "What is the capital of France?": (15, _THINKING),
    "The capital of France is": (5, _RIVIERA),
}
_WORDS = """
lamp river seven stone cloud wolf paper north glass winter onion kettle moth train plum harbour
violet anchor ladder copper saddle thimble walnut canyon marble fox
"""

TOKENS: list[bytes] = [b"", b"\xf0\x9f", b"\x99\x82"]
TOKENS += sorted({text.encode() for _, script in SCRIPTS.values() for text in script})
TOKENS += [f" {word}".encode() for word in _WORDS.split()]

CONTEXT = 4000
EMOJI = "🙂"


@frozen(kw_only=True)
class Sampling:
    """The six fields, as a request resolves them."""

    temperature: float = 0
    top_k: int = 0
    top_p: float = 1
    min_p: float = 0
    repetition_penalty: float = 1
    seed: int | None = None


@frozen
class Prompt:
    """Token ids, and the text behind them if there was one."""

    ids: tuple[int, ...]
    text: str = ""
    counted: int | None = None

    @property
    def tokens(self) -> int:
        """What usage counts."""
        return len(self.ids) if self.counted is None else self.counted

    @classmethod
    def of_text(cls, text: str, *, template: int = 0) -> Prompt:
        """A text's tokens, and ``template`` more of them around it."""
        if len(text) > 100_000:
            return cls((3,) * (len(text) // 2), text)
        words = re.findall(r"<\|im_end\|>|\s?\w+|\W", text)
        ids = [3 + crc32(word.encode()) % (len(TOKENS) - 3) for word in words]
        prompt = cls((*([3] * template), *ids), text)
        script = SCRIPTS.get(text)
        return prompt if script is None else evolve(prompt, counted=script[0])


def generate(prompt: Prompt, sampling: Sampling) -> Iterator[int]:
    """Token ids without end; the end-of-sequence token is one of them."""
    drawn = random.Random(sampling.seed)
    made: list[int] = []
    while True:
        token = _pick(_logits(prompt, made), [*prompt.ids, *made], sampling, drawn)
        made.append(token)
        yield token


def _logits(prompt: Prompt, made: Sequence[int]) -> list[float]:
    recent = (*prompt.ids[-8:], *made)[-8:]
    noise = random.Random(repr(recent))
    logits = [noise.gauss(0, 2) for _ in TOKENS]
    logits[END] = logits[OTHER_HALF] = -100.0
    if len(recent) > 1 and recent[-1] == recent[-2]:
        logits[recent[-1]] += 6
    script = SCRIPTS.get(prompt.text, (0, ()))[1]
    if len(made) < len(script):
        logits[TOKENS.index(script[len(made)].encode())] = 50
    if ("one word" in prompt.text or "<|im_end|>" in prompt.text) and len(made) == 3:
        logits[END] = 60
    if EMOJI in prompt.text and len(made) % 5 == 2:
        logits[HALF] = 70
    if made and made[-1] == HALF:
        logits[OTHER_HALF] = 80
    return logits


def _pick(
    logits: list[float], seen: Sequence[int], sampling: Sampling, drawn: random.Random
) -> int:
    for token in set(seen):
        penalty = sampling.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0:
        return order[0]
    order = order[: sampling.top_k or None]
    kept = _nucleus(order, logits, sampling.top_p)
    best = logits[kept[0]]
    kept = [token for token in kept if math.exp(logits[token] - best) >= sampling.min_p]
    weights = [math.exp((logits[token] - best) / sampling.temperature) for token in kept]
    return drawn.choices(kept, weights)[0]


def _nucleus(order: Sequence[int], logits: Sequence[float], top_p: float) -> list[int]:
    weights = [math.exp(logits[token] - logits[order[0]]) for token in order]
    total, reached = sum(weights), 0.0
    kept = []
    for token, weight in zip(order, weights, strict=True):
        kept.append(token)
        reached += weight / total
        if reached >= top_p:
            break
    return kept
