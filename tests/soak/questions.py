"""What is asked, and the answers by which a busy server is judged: each asked alone.

The server that gives them computes one request at a time and has nothing to go on from: before each
question it is asked one that begins with another token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import httpx2
from attrs import evolve, frozen

from caldrix.errors import CaldrixError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_WORDS = (
    *("lamp", "stone", "river", "quiet", "seven", "orange", "window", "paper", "cloud", "engine"),
    *("garden", "salt", "north", "mirror", "bread", "island", "thunder", "copper", "letter"),
)
_SHARED_WORDS = 40
_LONG_WORDS = 90
_FOLLOW_UP = "And why is that?"
# Of the questions, those that others are made from.
_TURNS, _STOPS = 0.5, 0.4
_PATIENCE = 120.0


class ExamFailed(CaldrixError):
    """A question has no answer even alone; of a model that does not chat, for one."""


@frozen
class Answer:
    """An answer, or what of it was asked for: ids and counts may be None."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    counts: tuple[int, int] | None
    """Tokens of the prompt and of the answer."""


@frozen
class Question:
    """A request's fields, all that an answer depends on."""

    path: str
    fields: Mapping[str, Any]


@frozen
class Exam:
    """Questions to the model ``model``, with their answers."""

    model: str
    answers: Sequence[tuple[Question, Answer]]


async def hold_exam(url: str, seed: int, count: int) -> Exam:
    """Asks about twice ``count`` questions, one at a time, of a server of one row.

    Raises ExamFailed.
    """
    random = Random(seed)
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=_PATIENCE) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        async def ask(question: Question) -> Answer:
            # The row forgets: nothing that is asked begins with the vocabulary's first token.
            other = {"model": model, "prompt": [0], "max_tokens": 1}
            (await client.post(TEXT, json=other)).raise_for_status()
            fields = {**question.fields, "model": model, "return_token_ids": True}
            answer = await client.post(question.path, json=fields)
            if answer.status_code != 200:
                raise ExamFailed(f"asked alone, {question.path} answered {answer.text.strip()}")
            return whole(answer.content)

        answers: list[tuple[Question, Answer]] = []
        for number in range(count):
            first = _KINDS[number % len(_KINDS)](random)
            answer = await ask(first)
            answers.append((first, answer))
            if random.random() < _TURNS:
                second = _second_turn(first, answer)
                answers.append((second, await ask(second)))
            if random.random() < _STOPS and len(answer.text) > 2:
                stopped = _stopped(first, answer, random)
                answers.append((stopped, await ask(stopped)))
        return Exam(model, answers)


def whole(body: bytes) -> Answer:
    """The answer in a body that came at once."""
    answer = json.loads(body)
    (choice,) = answer["choices"]
    usage = answer["usage"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    ids = choice.get("token_ids")
    return Answer(
        text,
        None if ids is None else tuple(ids),
        choice["finish_reason"],
        (usage["prompt_tokens"], usage["completion_tokens"]),
    )


def streamed(body: bytes) -> Answer:
    """The answer in a stream's events. Raises ValueError for a stream without its proper end."""
    *events, done, nothing = body.decode().split("\n\n")
    if (done, nothing) != ("data: [DONE]", ""):
        raise ValueError(f"the stream ends with {body[-300:]!r}")
    text, reasons = "", []
    ids: tuple[int, ...] | None = None
    counts: tuple[int, int] | None = None
    for event in events:
        if event.startswith(":"):
            # A comment: the stream was silent for long.
            continue
        chunk = json.loads(event.removeprefix("data: "))
        if not chunk["choices"]:
            counts = (chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"])
            continue
        (choice,) = chunk["choices"]
        text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        if "token_ids" in chunk:
            ids = (*(ids or ()), *chunk["token_ids"])
        if choice["finish_reason"] is not None:
            reasons.append(choice["finish_reason"])
    (reason,) = reasons
    return Answer(text, ids, reason, counts)


def _words(random: Random, count: int) -> str:
    return " ".join(random.choices(_WORDS, k=count))


def _settings(random: Random) -> dict[str, Any]:
    """Greedy as often as sampled, which has a seed, for its answer to be the same again."""
    settings: dict[str, Any] = {"max_tokens": random.randint(1, 32)}
    if random.random() < 0.5:
        settings |= {"temperature": random.choice([0.7, 1.0, 1.5]), "seed": random.randrange(2**32)}
        settings |= random.choice([{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}])
    if random.random() < 0.2:
        settings["repetition_penalty"] = 1.3
    if random.random() < 0.2:
        settings["ignore_eos"] = True
    return settings


def _text(random: Random) -> Question:
    return Question(TEXT, {"prompt": _words(random, random.randint(1, 20)), **_settings(random)})


def _long_text(random: Random) -> Question:
    """Of several slices, where tokens are bytes."""
    return Question(TEXT, {"prompt": _words(random, _LONG_WORDS), **_settings(random)})


def _chat(random: Random) -> Question:
    return _conversation(_words(random, random.randint(1, 20)), random)


def _shared(random: Random) -> Question:
    """One of a few beginnings, long enough to be kept, and an end of its own."""
    beginning = _words(Random(random.randrange(3)), _SHARED_WORDS)
    return _conversation(f"{beginning}: {_words(random, 3)}", random)


def _ids(random: Random) -> Question:
    prompt = [random.randint(1, 200) for _ in range(random.randint(1, 80))]
    return Question(TEXT, {"prompt": prompt, **_settings(random)})


def _conversation(content: str, random: Random) -> Question:
    messages = [{"role": "user", "content": content}]
    return Question(CHAT, {"messages": messages, **_settings(random)})


_KINDS: Sequence[Callable[[Random], Question]] = (_text, _chat, _shared, _long_text, _ids)


def _second_turn(first: Question, answer: Answer) -> Question:
    """A question that begins with another and its answer."""
    if first.path == CHAT:
        said = {"role": "assistant", "content": answer.text}
        asked = {"role": "user", "content": _FOLLOW_UP}
        changed: dict[str, Any] = {"messages": [*first.fields["messages"], said, asked]}
    elif isinstance(first.fields["prompt"], str):
        changed = {"prompt": f"{first.fields['prompt']}{answer.text} {_FOLLOW_UP}"}
    else:
        changed = {"prompt": [*first.fields["prompt"], *(answer.token_ids or ()), 7]}
    return evolve(first, fields={**first.fields, **changed})


def _stopped(first: Question, answer: Answer, random: Random) -> Question:
    """The same with a stop string that its answer holds."""
    start = random.randrange(len(answer.text) - 1)
    return evolve(first, fields={**first.fields, "stop": [answer.text[start : start + 2], "~~"]})
