"""What a chat model is asked, and which tokens of it are read."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.decisions.answers import NoulAnswer
from caldrix.decisions.errors import NoLabelToken, NoTemplate, OutOfLimits
from caldrix.decisions.labels import label_tokens
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.reading import Format, Prompt
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
    head = "<{{ messages | length }}{{ messages[0].role }}{{ enable_thinking }}{{ thinking }}>"
    source = head + "{{ messages[0].content }}"
    reading = ZeroShot.of(ChatTemplate(source, "", miniature.END), TOKENIZER, 10**6)
    prompt = reading.prompt("s", TEAM)
    assert TOKENIZER.decode(prompt.tokens) == "<1userFalseFalse>" + message("s", TEAM)
    assert prompt.label_ids == tuple(TOKENIZER.encode("ABC"))


def format_of(source: str) -> Format:
    return ZeroShot.of(ChatTemplate(source, "", miniature.END), TOKENIZER, 10**6)


def test_prompts_share_what_all_begin_with() -> None:
    writer = format_of("<{{ messages[0].content }}>").about({"order": ["é"]})
    assert writer.shared == ()
    questions: dict[str, Question] = {"team": TEAM, "angry": ANGRY, "urgency": URGENCY}
    whole = {name: tuple(writer.write(question)) for name, question in questions.items()}
    asked = writer.gather(whole)
    assert TOKENIZER.decode(asked.shared) == '<State:\n{"order":["é"]}\n\nQuestion: '
    for name, (prompt,) in asked.prompts.items():
        assert (Prompt(asked.shared + prompt.tokens, prompt.label_ids),) == whole[name]


def test_a_single_prompt_shares_nothing() -> None:
    writer = format_of("{{ messages[0].content }}").about("s")
    whole = {"q": tuple(writer.write(ANGRY))}
    assert writer.gather(whole).prompts == whole
    assert writer.gather(whole).shared == ()


def test_of_equal_prompts_the_last_token_is_left() -> None:
    writer = format_of("{{ messages[0].content }}").about("s")
    (prompt,) = writer.write(ANGRY)
    asked = writer.gather({"a": (prompt,), "b": (prompt,)})
    rest = Prompt(prompt.tokens[-1:], prompt.label_ids)
    assert asked.shared == prompt.tokens[:-1]
    assert asked.prompts == {"a": (rest,), "b": (rest,)}


@given(st.lists(st.lists(st.integers(0, 1), min_size=1).map(tuple), min_size=2, max_size=4))
def test_no_more_is_shared_and_no_less(rows: list[tuple[int, ...]]) -> None:
    prompts = {str(name): (Prompt(tokens, (1,)),) for name, tokens in enumerate(rows)}
    asked = format_of("").about("s").gather(prompts)
    rest = [prompt.tokens for (prompt,) in asked.prompts.values()]
    assert [asked.shared + tokens for tokens in rest] == rows
    assert all(rest)
    assert len({tokens[0] for tokens in rest}) > 1 or min(map(len, rest)) == 1


def test_a_yes_is_the_first_label() -> None:
    form = format_of("")
    logits = np.array([float(np.log(3)), 0], np.float32)
    found = form.answer(ANGRY, [logits])
    assert isinstance(found, NoulAnswer)
    assert found.noul == pytest.approx(0.75, rel=1e-6)
    assert not form.counts_shared_once


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        (Choice(None, {}), "must hold 1 to 26 options, got 0"),
        (Choice(None, dict.fromkeys(map(str, range(27)))), "must hold 1 to 26 options, got 27"),
        (Score(None, ()), "must hold 1 to 26 levels, got 0"),
        (Score(None, ("a",) * 27), "must hold 1 to 26 levels, got 27"),
    ],
)
def test_a_question_past_the_limits(question: Question, problem: str) -> None:
    form = format_of("")
    for refuse in (form.limits.check, form.about("s").write):
        with pytest.raises(OutOfLimits) as refused:
            refuse(question)
        assert (str(refused.value), refused.value.path) == (problem, ("criteria",))


def test_the_number_of_questions() -> None:
    with pytest.raises(OutOfLimits, match=r"^must hold 1 to 64 questions, got 65$"):
        format_of("").limits.check_number(65)


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
