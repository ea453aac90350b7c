"""What a chat model is asked, and which tokens of it are read."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from caldrix.decisions.errors import NoLabelToken, NoTemplate
from caldrix.decisions.labels import label_tokens
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.values import Number
from caldrix.decisions.zero_shot import ZeroShot, message
from caldrix.text.template import ChatTemplate
from caldrix.text.template_files import template_of_directory
from caldrix.text.tokenizer import Tokenizer
from tests.support import miniature
from tests.support.readable import TOKENIZER

PRINTED_STATE = (
    "Customer message: I was charged twice for my order last week "
    "and I want one of the payments back."
)
TEAM = Choice(
    "Which team should handle this message?",
    {
        "billing": "payments, refunds and invoices",
        "shipping": "deliveries, tracking and lost parcels",
        "technical": "bugs, crashes and login problems",
    },
)
ANGRY = Noul("Is the customer angry?")
URGENCY = Score("How urgent is the message?", ("not urgent", "somewhat urgent", "very urgent"))


def test_the_printed_questions_count_204_tokens(qwen3_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.from_directory(qwen3_tokenizer_dir)
    source = template_of_directory(qwen3_tokenizer_dir)
    assert source is not None
    reading = ZeroShot.of(ChatTemplate(source, "", "<|im_end|>"), tokenizer, 151_936)
    prompts = [reading.prompt(PRINTED_STATE, question) for question in (TEAM, ANGRY, URGENCY)]
    assert sum(len(prompt.tokens) for prompt in prompts) == 204
    # Thinking is off: its block is there, and empty.
    thought = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    for prompt in prompts:
        assert tokenizer.decode(prompt.tokens, skip_special_tokens=False).endswith(thought)
    assert [prompt.label_ids for prompt in prompts] == [(32, 33, 34), (9454, 2753), (32, 33, 34)]


def test_a_choice() -> None:
    question = Choice(
        {"ask": ["Who", Number("1.50")]},
        {"he": "the \n first", "she": None, "it": "", "they": [], "we": {"a": None}},
    )
    assert message("s", question) == (
        'State:\ns\n\nQuestion: {"ask":["Who",1.5]}\nOptions:\nA. he: the \n first\nB. she\nC. it\n'
        'D. they: []\nE. we: {"a":null}\nAnswer with the letter of the best option.'
    )


def test_a_score() -> None:
    question = Score("How bad?", ("fine", ["bad", Number("1e1")], ""))
    assert message("s", question) == (
        'State:\ns\n\nQuestion: How bad?\nLevels:\nA. fine\nB. ["bad",10.0]\nC. \n'
        "Answer with the letter of the best level."
    )


@pytest.mark.parametrize(
    ("question", "lines"),
    [
        (Noul("Late?"), ""),
        (Noul("Late?", yes="too late", no={}), "Yes: too late\nNo: {}\n"),
        (Noul("Late?", no="in time"), "No: in time\n"),
        (Noul("Late?", yes=""), ""),
    ],
)
def test_a_noul(question: Noul, lines: str) -> None:
    assert message("s", question) == (
        f"State:\ns\n\nQuestion: Late?\n{lines}Answer with Yes or No."
    )


@pytest.mark.parametrize("instructions", [None, ""])
def test_a_question_without_instructions(instructions: str | None) -> None:
    asked: dict[str, Question] = {
        "Which option fits the state best?": Choice(instructions, {"a": None}),
        "Which level fits the state best?": Score(instructions, ("a",)),
        "Which answer fits the state best?": Noul(instructions),
    }
    for words, question in asked.items():
        assert f"\n\nQuestion: {words}\n" in message("s", question)
    assert "\n\nQuestion: []\n" in message("s", Noul([]))


def test_the_prompt_is_what_the_template_makes_of_one_message() -> None:
    head = "<{{ messages | length }}{{ messages[0].role }}{{ enable_thinking }}>"
    source = head + "{{ messages[0].content }}"
    reading = ZeroShot.of(ChatTemplate(source, "", miniature.END), TOKENIZER, 10**6)
    prompt = reading.prompt("s", TEAM)
    assert TOKENIZER.decode(prompt.tokens) == "<1userFalse>" + message("s", TEAM)
    assert prompt.label_ids == tuple(TOKENIZER.encode("ABC"))


def test_a_model_without_a_template_is_not_asked() -> None:
    with pytest.raises(NoTemplate):
        ZeroShot.of(None, TOKENIZER, 10**6)


def test_every_label_is_one_token() -> None:
    tokens = label_tokens(TOKENIZER, TOKENIZER.vocab_size)
    assert list(tokens) == [*string.ascii_uppercase, "Yes", "No"]
    assert TOKENIZER.decode(tokens.values()) == string.ascii_uppercase + "YesNo"


class Mapped:
    """Encodes a label as the ids it is given, and any other as an id of its own."""

    def __init__(self, **ids: list[int]) -> None:
        self._ids = ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return self._ids.get(text, [int.from_bytes(text.encode())])


@pytest.mark.parametrize(
    ("ids", "label", "why"),
    [
        ({"Q": [7, 8]}, "Q", "2 tokens"),
        ({"No": []}, "No", "0 tokens"),
        ({"Yes": [10**8]}, "Yes", "the token 100000000, which the model does not have,"),
        ({"Z": [ord("A")]}, "Z", "the token of another label"),
    ],
)
def test_a_label_without_a_token_of_its_own(
    ids: dict[str, list[int]], label: str, why: str
) -> None:
    with pytest.raises(NoLabelToken) as refused:
        label_tokens(Mapped(**ids), 10**8)
    assert str(refused.value) == (
        f"/v1/systemone needs one token for each label, and this model's tokenizer makes {why} of "
        f"the label '{label}'; serve another model"
    )
