"""JSON values in prompts and in answers: numbers, keys, escapes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.decisions.values import (
    MANY,
    Number,
    Text,
    Value,
    echoed,
    spaced,
    spaced_state,
    written,
)

# (as spelled, canonical)
NUMBERS = [
    ("0", "0"),
    ("-0", "0"),
    ("7", "7"),
    ("9007199254740993", "9007199254740993"),
    ("-" + "9" * 5000, "-" + "9" * 5000),
    ("1.50", "1.5"),
    ("-0.0", "-0.0"),
    ("2.0", "2.0"),
    ("1e2", "100.0"),
    ("1e-4", "0.0001"),
    ("0.00001", "1e-05"),
    ("1.5E-7", "1.5e-07"),
    ("12e-123", "1.2e-122"),
    ("1.25e15", "1250000000000000.0"),
    ("9999999999999998.0", "9999999999999998.0"),
    ("1e16", "1e+16"),
    ("12345678901234567.0", "1.2345678901234568e+16"),
    ("2E0100", "2e+100"),
    ("3.14159265358979323846", "3.141592653589793"),
    ("1e-400", "0.0"),
]


@pytest.mark.parametrize(("spelling", "canonical"), NUMBERS)
def test_a_number_has_one_form_in_prompts_and_its_own_in_answers(
    spelling: str, canonical: str
) -> None:
    value = {"n": [Number(spelling)]}
    assert written(value) == f'{{"n":[{canonical}]}}'
    assert spaced(value) == f'{{"n": [{canonical}]}}'
    assert echoed(value) == f'{{"n":[{spelling}]}}'


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(17, 40))
def test_every_spelling_of_a_float_is_read_alike(number: float, digits: int) -> None:
    spelled = Number(f"{number:.{digits}e}")
    assert spelled.canonical == Number.of(number).canonical == repr(number)


@pytest.mark.parametrize(
    ("spelling", "finite"),
    [("1e308", True), ("1e309", False), ("-1E400", False), ("9" * 999, True)],
)
def test_only_a_float_can_be_too_large(spelling: str, finite: bool) -> None:
    assert Number(spelling).is_finite is finite


def test_a_string_is_a_text_as_it_is_and_quoted_inside_of_one() -> None:
    text = 'dépôt "9"\\\n\t\x01\x7f🙂'
    assert written(text) == text
    assert written([text, {}]) == '["dépôt \\"9\\"\\\\\\n\\t\\u0001\x7f🙂",{}]'
    assert spaced(text) == stated(text) == text


def test_keys_keep_their_order_at_any_depth() -> None:
    value: Mapping[str, Value] = {"z": {"b": None, "a": True}, "10": [], "2": False}
    assert written(value) == echoed(value) == '{"z":{"b":null,"a":true},"10":[],"2":false}'


VALUES: st.SearchStrategy[Value] = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers().map(lambda n: Number(str(n))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.lists(VALUES))
def test_what_is_written_reads_back(value: list[Value]) -> None:
    assert json.loads(written(value), parse_int=Number) == value


def stated(state: Text) -> str:
    return "".join(spaced_state(state))


def with_positions(value: Value) -> Value:
    """All at once: objects in the place of the elements of long lists."""
    if isinstance(value, Mapping):
        return {key: with_positions(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [with_positions(item) for item in value]
    if len(items) < MANY:
        return items
    placed: list[Value] = []
    for index, item in enumerate(items):
        members = item if isinstance(item, Mapping) else {"value": item}
        placed.append({"_index": Number(str(index)), **members})
    return placed


def plain(value: Value) -> object:
    """A value as Python's json has it."""
    return json.loads(echoed(value))


@given(st.lists(VALUES, max_size=12))
def test_spaces_are_those_of_pythons_json(value: list[Value]) -> None:
    assert spaced(value) == json.dumps(plain(value), ensure_ascii=False)
    assert stated(value) == spaced([with_positions(value)])[1:-1]


def test_positions_in_a_list_of_eight() -> None:
    one = Number("1")
    items: list[Value] = [{"a": one}, {"a": one, "_index": "own"}, "s", None, [one], [], one, {}]
    assert stated(items[:7]) == ('[{"a": 1}, {"a": 1, "_index": "own"}, "s", null, [1], [], 1]')
    placed = (
        '[{"_index": 0, "a": 1}, {"_index": "own", "a": 1}, {"_index": 2, "value": "s"}, '
        '{"_index": 3, "value": null}, {"_index": 4, "value": [1]}, {"_index": 5, "value": []}, '
        '{"_index": 6, "value": 1}, {"_index": 7}]'
    )
    assert stated(items) == placed
    # At any depth, of such a list too.
    assert stated({"k": [items]}) == f'{{"k": [{placed}]}}'
    assert (
        stated([items] * 8)
        == "[" + ", ".join(f'{{"_index": {index}, "value": {placed}}}' for index in range(8)) + "]"
    )
    # Nowhere but in a state.
    assert '_index": 0' not in spaced(items)


def without_positions(value: object) -> object:
    """Takes back what `with_positions` did to a value that has no _index of its own."""
    if isinstance(value, dict):
        return {key: without_positions(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) < 8:
        return [without_positions(item) for item in value]
    assert [next(iter(item)) for item in value] == ["_index"] * len(value)
    assert [item["_index"] for item in value] == list(range(len(value)))
    left = [{key: item[key] for key in item if key != "_index"} for item in value]
    return [without_positions(item["value"] if list(item) == ["value"] else item) for item in left]


@given(st.lists(VALUES.filter(lambda value: "value" not in echoed(value)), max_size=12))
def test_positions_hide_nothing(value: list[Value]) -> None:
    assert without_positions(plain(with_positions(value))) == plain(value)
