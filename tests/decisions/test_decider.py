"""What a decider is asked, token by token, and how its logits become answers."""

from __future__ import annotations

import json
import string
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from caldrix.decisions.answers import ChoiceAnswer, NoulAnswer, ScoreAnswer
from caldrix.decisions.decider import Decider, least_tokens
from caldrix.decisions.decider_config import DeciderConfig
from caldrix.decisions.errors import NoLabelToken, OutOfLimits, StateTooLong, UnusableReading
from caldrix.decisions.labels import Label, decider_labels
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.reading import Format, Prompt
from caldrix.decisions.values import Number, Text
from caldrix.text.errors import InvalidText
from caldrix.text.tokenizer import Tokenizer
from caldrix.weights.tensor import Float32
from tests.support.readable import TOKENIZER

CAPTURED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "references" / "data" / "decider_prompts.json").read_text("utf-8")
)
THREE = Choice("Which?", {"a": None, "b": None, "c": None})
LEVELS = Score("How bad?", ("0: fine", "bad", "2: worse"))


def decider(**settings: Any) -> Decider:
    """One of the miniature vocabulary, where a letter is a token and two letters are two."""
    config = DeciderConfig(**{"temperature": 1.0, **settings})
    return Decider.of(config, TOKENIZER, TOKENIZER.vocab_size)


def written(asked: Decider, question: Question) -> list[str]:
    return [TOKENIZER.decode(prompt.tokens) for prompt in asked.write(question)]


def question_of(body: Mapping[str, Any]) -> Question:
    instructions, criteria = body.get("instructions"), body.get("criteria")
    match body["type"], criteria:
        case "choice", dict():
            return Choice(instructions, criteria)
        case "score", list():
            return Score(instructions, tuple(criteria))
        case "noul", dict():
            return Noul(instructions, yes=criteria.get("true"), no=criteria.get("false"))
    raise AssertionError(body)


# Prompts


@pytest.fixture(scope="module")
def qwen3(qwen3_tokenizer_dir: Path) -> Decider:
    tokenizer = Tokenizer.from_directory(qwen3_tokenizer_dir)
    return Decider.of(DeciderConfig(temperature=1.03), tokenizer, 151_936)


def test_token_ids_are_those_of_the_independent_construction(qwen3: Decider) -> None:
    labels = tuple(CAPTURED["labels"])
    assert [label.token for label in qwen3.labels] == list(labels)
    assert len(CAPTURED["cases"]) == 60
    for case in CAPTURED["cases"]:
        # As they were sent: numbers keep their spelling until they are written.
        request = json.loads(case["request"], parse_int=Number, parse_float=Number)
        config = DeciderConfig(temperature=1.03, isolated_levels=case["isolated"])
        writer = evolve(qwen3, config=config).about(request["state"])
        assert writer.shared == tuple(case["state"]), case["request"]
        prompts = {
            name: tuple(writer.write(question_of(body)))
            for name, body in request["questions"].items()
        }
        asked = writer.gather(prompts)
        assert asked.shared == writer.shared
        assert asked.prompts == {
            name: tuple(Prompt(tuple(ids), labels[:count]) for ids, count in rows)
            for name, rows in case["rows"].items()
        }, case["request"]


def test_a_state_in_words() -> None:
    writer = decider().about({"order": [Number("7"), "é"]})
    assert TOKENIZER.decode(writer.shared) == 'Context:\n{"order": [7, "é"]}'


def test_pieces_in_words() -> None:
    choice = Choice({"ask": [Number("1.50"), "é"]}, {"x": None, "y": "", "z": {"n": [None, True]}})
    assert written(decider(), choice) == [
        '\n\nQuestion: {"ask": [1.5, "é"]}\nOptions:\n(A) x\n(B) y\n(C) z: {"n": [null, true]}'
        "\nAnswer: ("
    ]
    assert written(decider(), Noul(None, yes="late", no="")) == [
        "\n\nQuestion: Which answer fits the context?\nOptions:\n(A) no\n(B) yes: late\nAnswer: ("
    ]
    assert written(decider(), LEVELS) == [
        "\n\nQuestion: How bad?\nOptions:\n(A) 0: 0: fine\n(B) 1: bad\n(C) 2: 2: worse\nAnswer: ("
    ]


@pytest.mark.parametrize(
    ("level", "proposed"),
    [
        ("2: late", "late"),
        ("\n -3 :\t late", "late"),
        ("2: 3: late", "3: late"),
        ("2:", ""),
        ("2 late", "2 late"),
        ("a\n2: late", "a\n2: late"),
        ({"2": "late"}, '{"2": "late"}'),
    ],
)
def test_isolated_levels_are_asked_without_their_numbers(level: Text, proposed: str) -> None:
    first, second = decider(isolated_levels=True).write(Score("How?", (level, "x")))
    assert TOKENIZER.decode(first.tokens) == (
        f"\n\nQuestion: How?\nProposed answer: {proposed}\nDoes the proposed answer fit?"
        "\nOptions:\n(A) no\n(B) yes\nAnswer: ("
    )
    assert first.label_ids == second.label_ids == tuple(TOKENIZER.encode("AB"))


def test_half_a_character_is_refused() -> None:
    with pytest.raises(InvalidText):
        decider().about("\ud83d")
    with pytest.raises(InvalidText):
        list(decider().write(Noul("\ud83d")))


# Labels


class Mapped:
    """Encodes up to two letters as one id, and a label that it is given as those ids."""

    def __init__(self, **ids: list[int]) -> None:
        self._ids = ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return self._ids.get(text, [int.from_bytes(text.encode())])


def test_labels_go_on_with_two_letters_that_are_one_token() -> None:
    ids = {"AB": [1, 2], "AC": [], "AD": [ord("A")], "AE": [10**6]}
    labels = decider_labels(Mapped(**ids), 10**6)
    assert len(labels) == 255
    texts = [label.text for label in labels]
    assert texts[:29] == [*string.ascii_uppercase, "AA", "AF", "AG"]
    assert texts == sorted(texts, key=lambda text: (len(text), text))
    assert labels[26] == Label("AA", int.from_bytes(b"AA"))
    assert len({label.token for label in labels}) == 255


@pytest.mark.parametrize("ids", [[1, 2], [], [10**6], [ord("A")]])
def test_every_letter_is_a_token_of_its_own(ids: list[int]) -> None:
    with pytest.raises(NoLabelToken, match="the label 'Q'"):
        decider_labels(Mapped(Q=ids), 10**6)


# Limits


def options(count: int) -> Mapping[str, Text | None]:
    return {str(index): None for index in range(count)}


PREFIX = "this model is a decider: "
NEEDS = 'needs instructions that are neither null nor ""'
BARE = "a noul without instructions needs a description of true or of false"
REFUSED: list[tuple[Question, str, str]] = [
    (Choice("q", options(1)), "criteria", "a choice must hold 2 to 20 options, got 1"),
    (Choice("q", options(21)), "criteria", "a choice must hold 2 to 20 options, got 21"),
    (Score("q", ("a",)), "criteria", "a score must hold 2 to 10 levels, got 1"),
    (Score("q", ("a",) * 11), "criteria", "a score must hold 2 to 10 levels, got 11"),
    (Choice(None, options(2)), "instructions", f"a choice {NEEDS}"),
    (Choice("", options(2)), "instructions", f"a choice {NEEDS}"),
    (Score(None, ("a", "b")), "instructions", f"a score {NEEDS}"),
    (Score("", ("a", "b")), "instructions", f"a score {NEEDS}"),
    (Noul(None), "criteria", BARE),
    (Noul("", yes="", no=None), "criteria", BARE),
]


@pytest.mark.parametrize(("question", "place", "problem"), REFUSED)
def test_a_question_past_the_limits(question: Question, place: str, problem: str) -> None:
    asked = decider(max_options=20)
    for refuse in (asked.limits.check, asked.write, asked.about("s").write):
        with pytest.raises(OutOfLimits) as refused:
            refuse(question)
        assert (str(refused.value), refused.value.path) == (PREFIX + problem, (place,))


@pytest.mark.parametrize(
    "question",
    [
        Choice([], options(2)),
        Choice({}, options(20)),
        Score("q", ("",) * 2),
        Score("q", ("",) * 10),
        Noul("q"),
        Noul(None, yes="late"),
        Noul("", no={}),
    ],
)
def test_a_question_within_the_limits(question: Question) -> None:
    assert list(decider(max_options=20).write(question))


@pytest.mark.parametrize("count", [0, 65])
def test_the_number_of_questions(count: int) -> None:
    limits = decider().limits
    limits.check_number(1)
    limits.check_number(64)
    with pytest.raises(OutOfLimits) as refused:
        limits.check_number(count)
    assert str(refused.value) == f"{PREFIX}a request must hold 1 to 64 questions, got {count}"
    assert refused.value.path == ()


def test_there_are_no_more_options_than_labels() -> None:
    asked = decider()
    (prompt,) = asked.write(Choice("q", options(26)))
    assert prompt.label_ids == tuple(TOKENIZER.encode(string.ascii_uppercase))
    with pytest.raises(OutOfLimits, match="2 to 26 options, got 27"):
        asked.write(Choice("q", options(27)))


# The state's cap


def test_a_state_may_be_just_as_long_as_the_cap() -> None:
    # A byte is a token here, and "Context:" with its line break are nine.
    assert len(decider(max_state_tokens=20).about("x" * 11).shared) == 20
    with pytest.raises(StateTooLong) as refused:
        decider(max_state_tokens=20).about("x" * 12)
    assert str(refused.value) == (
        "the state is 21 tokens, and this model takes 20 at most; send a shorter state"
    )


def test_a_state_that_can_fit_by_no_means_is_not_tokenized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = decider(max_state_tokens=1)
    assert asked.longest_token == 2**16
    monkeypatch.delattr(Tokenizer, "encode")
    with pytest.raises(StateTooLong, match=r"^the state is at least 2 tokens, .* takes 1 "):
        asked.about("x" * 2**16)
    with pytest.raises(AttributeError):  # but this one may fit, and would be
        asked.about("x" * (2**16 - 9))


TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [" " * 700, "\n" * 700, "-" * 700, "=" * 700, "的" * 99, "<|im_start|>" * 9, "🙂" * 99]
)


@given(text=TEXTS)
def test_no_text_has_fewer_tokens_than_the_least(qwen3: Decider, text: str) -> None:
    # What Qwen3's tokenizer does to a text first.
    normal = unicodedata.normalize("NFC", text)
    least = least_tokens(normal, qwen3.longest_token)
    assert 0 <= least <= len(qwen3.tokenizer.encode(normal))


def test_the_longest_token_is_measured_in_bytes(qwen3: Decider) -> None:
    # 128 spaces; the longest special one, <|repo_name|> and the like, has fewer.
    assert qwen3.longest_token == 128
    assert least_tokens("é" * 64, 128) == 1
    assert least_tokens("é" * 64 + "x", 128) == 2
    assert least_tokens("", 128) == 0


# Answers


def row(*logits: float) -> Float32:
    return np.array(logits, np.float32)


def test_logits_are_divided_by_the_temperature() -> None:
    ln2 = float(np.log(2))
    found = decider(temperature=2.0).answer(THREE, [row(4 * ln2, 2 * ln2, 0)])
    assert isinstance(found, ChoiceAnswer)
    assert found.choice == "a"
    assert found.probabilities == pytest.approx((4 / 7, 2 / 7, 1 / 7), rel=1e-6)
    assert found.confidence == pytest.approx((4 / 7 - 1 / 3) / (2 / 3), rel=1e-6)
    # All in 32-bit floats.
    assert all(float(np.float32(p)) == p for p in found.probabilities)


def test_a_noul_is_its_second_option() -> None:
    found = decider(temperature=1.03).answer(Noul("q"), [row(1.03, 0)])
    assert isinstance(found, NoulAnswer)
    assert found.noul == pytest.approx(1 / (1 + np.e), rel=1e-6)


def test_levels_in_one_prompt() -> None:
    found = decider().answer(LEVELS, [row(0, 0, -np.inf)])
    assert found == ScoreAnswer(0.5, (0.5, 0.5, 0.0), 1 - 0.5 / (2 / 3))


def test_isolated_levels_share_what_they_have_in_all() -> None:
    asked = decider(isolated_levels=True, temperature=2.0)
    three = 2 * float(np.log(3))
    found = asked.answer(LEVELS, [row(0, three), row(three, 0), row(0, 0)])
    # Yes to each of them: 3/4, 1/4 and 1/2, of 3/2 in all.
    assert isinstance(found, ScoreAnswer)
    assert found.probabilities == pytest.approx((1 / 2, 1 / 6, 1 / 3), rel=1e-6)
    assert found.score == pytest.approx(1 / 6 + 2 / 3, rel=1e-6)


def test_no_isolated_level_fits_at_all() -> None:
    no = row(0, -np.inf)
    assert decider(isolated_levels=True).answer(LEVELS, [no, no, no]) == ScoreAnswer(
        0.0, (0.0, 0.0, 0.0), 1.0
    )


def test_isolation_is_for_levels_alone() -> None:
    asked = decider(isolated_levels=True)
    assert len(list(asked.write(THREE))) == len(list(asked.write(Noul("q")))) == 1
    assert asked.answer(Noul("q"), [row(0, 0)]) == NoulAnswer(0.5)


@pytest.mark.parametrize(
    ("temperature", "logits"), [(1.0, [0, np.nan]), (1.0, [np.inf, 0]), (1e-38, [50, 0])]
)
def test_logits_that_give_no_probabilities(temperature: float, logits: list[float]) -> None:
    with pytest.raises(UnusableReading):
        decider(temperature=temperature).answer(Noul("q"), [row(*logits)])


def test_it_is_a_format() -> None:
    form: Format = decider()
    assert form.counts_shared_once
