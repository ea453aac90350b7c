"""Chat templates: what they render, what they refuse, and that they always end."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from caldrix.text.allowance import RenderLimits
from caldrix.text.errors import TemplateError, TemplateRefusal
from caldrix.text.template import ChatTemplate, render_chat
from caldrix.text.template_files import template_of_directory, template_of_gguf
from caldrix.weights.gguf import open_gguf

USER = [{"role": "user", "content": "Hi <b>é</b>"}]


def render(source: str, limits: RenderLimits | None = None, **variables: Any) -> str:
    now = lambda: datetime(2025, 3, 9, 7, 5)  # noqa: E731
    template = ChatTemplate(source, "<s>", "</s>", limits=limits, now=now)
    return template.render(USER, **variables)


# What templates are given


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi <b>é</b></s>"),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{{ add_generation_prompt }} {{ tools is none and documents is none }}", "True True"),
        ("{{ missing }}|{{ missing is defined }}", "|False"),
        ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ strftime_now('%d %b %Y') }}", "09 Mar 2025"),
        (
            "{% set n = namespace(x=1) %}"
            "{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
            "4",
        ),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
            "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        (
            "{% for i in 'abc' if i != 'b' %}{{ loop.index }}/{{ loop.length }}{{ i }}{% endfor %}",
            "1/2a2/2c",
        ),
        ("{% generation %}said{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "saidFalse"),
        ("{{ '%s-%03d' % ('a', 7) }} {{ '{:>3}'.format('b') }}", "a-007   b"),
        ("{{ 'x' * 3 ~ 1 }} {{ 'aXa' | replace('a', 'bb') }}", "xxx1 bbXbb"),
        ("{{ 'a b c'.split(' ')[::-1] | join('+') }}", "c+b+a"),
        ("{{ [{'n': 2}, {'n': 3}] | sum(attribute='n') }} {{ [3, 1] | sort }}", "5 [1, 3]"),
        ("{{ messages | map(attribute='role') | list }}", "['user']"),
        (
            "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}"
            "{% set b %}{{ m(2) }}{% endset %}{{ b }}",
            "<1><2>",
        ),
        ("{{ dict(a=1).a }}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "1x1"),
    ],
)
def test_templates_have_what_they_expect(source: str, expected: str) -> None:
    assert render(source) == expected


def test_variables_reach_the_template() -> None:
    assert render("{{ enable_thinking }}{{ tools }}", enable_thinking=False, tools=[]) == "False[]"


def test_a_real_template(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as checkpoint:
        source = template_of_gguf(checkpoint.metadata)
    assert source is not None
    assert ChatTemplate(source, "<|im_start|>", "<|im_end|>").render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi <b>é</b><|im_end|>\n<|im_start|>assistant\n"
    )


# What they refuse, and how they fail


def test_a_template_s_own_message_is_the_error() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ raise_exception('Only user messages, please.') }}")
    assert str(caught.value) == "Only user messages, please."


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n\n{{ messages[0].nope.deep }}", "at line 3: 'dict object' has no attribute 'nope'"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "no loader"),
        ("{{ namespace | tojson }}", "not JSON serializable"),
        ("{{ strftime_now(1) }}", "strftime_now"),
        ("{{ raise_exception }}", "a function"),
    ],
)
def test_a_failing_template_says_what_and_where(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ ('{0.__class__}' | safe).format(1) }}",
        "{{ [''] | map(attribute='__class__') | list }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ (raise_exception).__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(TemplateError, match=r"not allowed|private name"):
        render(source)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("one\ntwo\n{% if %}", 3),
        ("{% for x in y %}\n", 1),
        ("\n{{ x | nosuchfilter }}", 2),
        ("\n\n\n{{ 'open }}", 4),
        ("\n{{ [1, 4294967296] }}", 2),
    ],
)
def test_a_broken_template_is_refused_with_its_line(source: str, line: int) -> None:
    with pytest.raises(TemplateRefusal, match=f"at line {line}:"):
        ChatTemplate(source, "", "")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "x" * 2**21,
    ],
)
def test_an_oversized_template_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        ChatTemplate(source, "", "")


# Bounds: each of these would run for ages, or fill the memory, on its own


DOUBLING = "{% set n = namespace(s='x') %}{% for i in range(99) %}{% … %}{% endfor %}"
GROWING = [
    "{{ 'x' * 10**10 }}",
    "{{ 10**9 * [1] }}",
    "{{ 2 ** (10**9) }}",
    "{{ ('f' * 10**6) | int(base=16) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' | format(1.5) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**9) }}",
    "{{ ('%s' * 100000) % (('x' * 1000,) * 100000) }}",
    "{{ 'x'.center(10**9) }}{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ 'x\ny' | indent(width=10**9) }}",
    "{{ [1] | tojson(indent=10**9) }}",
    "{{ 1 | round(10**9, 'ceil') }}",
    "{{ [1] | batch(10**9, 1) | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{% set a = 'x' * 10**6 %}{{ a.replace('x', a) }}",
    "{% set a = 'x' * 10**6 %}{{ a | replace('x', a) }}",
    "{% set a = 'x' * 10**6 %}{{ a.join(a) }}",
    "{% set a = 'x' * 10**6 %}{{ a | join(a) }}",
    "{% set a = 'x' * 10**6 %}{{ a | map('replace', 'x', a) | list }}",
    "{{ 'abc'.translate({97: 'x' * 10**6}) }}",
    "{{ (1).to_bytes(10**9, 'big') }}",
    "{{ range(10**9) }}{% for i in range(10**9) %}{% endfor %}",
    DOUBLING.replace("…", "set n.s = n.s + n.s"),
    DOUBLING.replace("…", "set n.s = n.s ~ n.s"),
    DOUBLING.replace("…", "set n.s = [n.s, n.s]"),
    DOUBLING.replace("…", "set n.s = (n.s, n.s)"),
    DOUBLING.replace("…", "set n.s = {0: n.s, 1: n.s}"),
    DOUBLING.replace("…", "set n.s = dict(a=n.s, b=n.s)"),
    DOUBLING.replace("…", "set n.s %}{{ n.s }}{{ n.s }}{% endset"),
    "{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}",
    "{% set b %}{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}{% endset %}",
    "{% set a = 'x' * 10**6 %}{% for i in range(99999) %}{% set b = a[1:] %}{% endfor %}",
    "{% set a = 'x' * 10**6 %}{% for i in range(99999) %}{% set b = a | upper %}{% endfor %}",
    "{% set a = ['x' * 10**4] * 10**4 %}{{ a | sort }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% block b %}{{ self.b() }}{% endblock %}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
]


@pytest.mark.parametrize("source", GROWING)
def test_growth_is_bounded(source: str) -> None:
    limits = RenderLimits(characters=11 * 10**5, work=2 * 10**7)
    with pytest.raises(TemplateError, match=r"^the chat template"):
        render(source, limits)


# Python hashes a whole number modulo 2**61 - 1: all multiples of that go to one place in a table,
# and so do tuples and fractions chosen for it. `m` is given as a client's JSON may give it.
MODULUS = 2**61 - 1
CHOSEN = "{% set ns = range(0, 40000 * m, m) %}"
SLOW_KEYS = [
    CHOSEN + "{{ ns | unique | list | length }}",
    CHOSEN + "{{ ns | map('string') | map('int') | unique | list | length }}",
    CHOSEN + "{{ ns | batch(1) | unique(attribute=0) | list | length }}",
    CHOSEN + "{{ dict(ns | batch(2)) | length }}",
    CHOSEN + "{{ namespace(ns | batch(2)) }}",
    CHOSEN + "{{ {}.fromkeys(ns) | length }}",
    CHOSEN + "{{ ''.maketrans({}).fromkeys(ns) | length }}",
    CHOSEN + "{{ {}.keys() - ns }}",
    CHOSEN + "{{ ns | list - {}.keys() }}",
    "{{ {m: 1, 2 * m: 1, 3 * m: 1, 4 * m: 1, 5 * m: 1, 6 * m: 1} }}",
    "{{ [(1, m), (1, 2 * m), (1, 3 * m), (1, 4 * m), (1, 5 * m)] | unique | list }}",
    "{{ {2.0 ** 0: 1, 2.0 ** 61: 1, 2.0 ** 122: 1, 2.0 ** 183: 1, 2.0 ** 244: 1, 2.0 ** 305: 1} }}",
]


@pytest.mark.parametrize("source", SLOW_KEYS)
def test_chosen_keys_are_refused(source: str) -> None:
    limits = RenderLimits(seconds=10**6)
    with pytest.raises(TemplateError, match=r"^the chat template (looks up|calls|subtracts)"):
        render(source, limits, m=MODULUS)


def test_honest_keys_are_taken() -> None:
    source = (
        "{{ [3, 'a', 'A', none, true, 1.5, 3, 1.5, (1, 2)] | unique | list }}"
        "{{ dict([('a', 1)], b=2) }}{{ dict({-1: 1, -2: 2, none: 3}) }}"
        "{{ range(9999) | unique | list | length }}{{ ([0.5] * 9999) | unique | list }}"
        "{{ messages | unique(attribute='role') | list | length }}"
    )
    assert render(source) == (
        "[3, 'a', None, True, 1.5, (1, 2)]{'a': 1, 'b': 2}{-1: 1, -2: 2, None: 3}9999[0.5]1"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ a.rfind('xy' + a) }}",
        "{{ a.rindex('xy' + a) }}",
        "{{ a.rsplit('xy' + a) }}",
        "{{ a.rpartition('xy' + a) }}",
        "{{ a.strip('y' * 10**6 + 'x') }}",
        "{{ a.lstrip('y' * 10**6 + 'x') }}",
        "{{ a.rstrip('y' * 10**6 + 'x') }}",
        "{{ a | trim('y' * 10**6 + 'x') }}",
        "{{ [1] | tojson(separators=(a, ':')) }}",
        "{{ a.encode('punycode') }}",
        "{{ a.encode().decode('idna') }}",
    ],
)
def test_slow_text_operations_are_refused(source: str) -> None:
    with pytest.raises(TemplateError, match=r"^the chat template (does more|asks for|encodes)"):
        render("{% set a = 'x' * 10**6 %}" + source, RenderLimits(seconds=10**6))


NESTED_LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        NESTED_LOOPS,
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for i in range(99999) %}{% endfor %}{% endmacro %}"
        "{% for i in range(99999) %}{{ m() }}{% endfor %}",
        "{{ ([[1]] * 99999) | sum(start=[]) }}",
        "{% set a = range(99999) | list %}{{ a | select('in', a) | list | length }}",
        "{% set a, b = [1] * 10**5, [1] * 10**5 %}{{ a" + " == b == a" * 999 + " }}",
    ],
)
def test_time_is_bounded(source: str) -> None:
    limits = RenderLimits(seconds=0.05, work=10**12)
    with pytest.raises(TemplateError, match=r"more than 0\.05 seconds"):
        render(source, limits)


def test_a_large_conversation_is_within_the_bounds() -> None:
    source = (
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '</s>' }}{% endfor %}"
    )
    chat = [{"role": "user", "content": "word " * 3000}] * 256
    assert len(ChatTemplate(source, "", "").render(chat)) == 256 * (6 + 14_999 + 4)


def test_namespaces_do_not_print_what_they_hold() -> None:
    source = (
        "{% set n = namespace(s='x') %}"
        "{% for i in range(99) %}{% set n.s = namespace(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}"
    )
    assert render(source) == "<namespace>"


# A system message that the template refuses

NO_SYSTEM = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)
SYSTEM = {"role": "system", "content": "Be brief."}
ASSISTANT = {"role": "assistant", "content": "Yes?"}


def test_a_system_message_stays_where_the_template_takes_it() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{% endfor %}", "", "")
    chat = render_chat(template, [SYSTEM, *USER])
    assert (chat.text, chat.system_moved) == ("[system][user]", False)


def test_a_refused_system_message_moves_into_the_first_user_message() -> None:
    messages = [SYSTEM, ASSISTANT, *USER, *USER]
    chat = render_chat(ChatTemplate(NO_SYSTEM, "", ""), messages)
    assert chat.system_moved
    assert chat.text == ("[assistant] Yes?\n[user] Be brief.\n\nHi <b>é</b>\n[user] Hi <b>é</b>\n")
    assert messages[0] is SYSTEM
    assert messages[2] == USER[0]


def test_a_system_message_moves_before_image_parts() -> None:
    source = NO_SYSTEM.replace("m.content", "m.content | tojson")
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    chat = render_chat(ChatTemplate(source, "", ""), [SYSTEM, {"role": "user", "content": parts}])
    moved = [{"type": "text", "text": "Be brief.\n\n"}, *parts]
    assert json.loads(chat.text.removeprefix("[user] ")) == moved


def test_a_system_message_of_parts_moves_before_others() -> None:
    source = NO_SYSTEM.replace("m.content", "m.content | tojson")
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": parts}]
    chat = render_chat(ChatTemplate(source, "", ""), messages)
    assert chat.system_moved
    moved = [{"type": "text", "text": "Be brief.\n\n"}, *parts]
    assert json.loads(chat.text.removeprefix("[user] ")) == moved
    # Images would change their places among others.
    messages[0]["content"] = [{"type": "image"}, *system]
    with pytest.raises(TemplateError, match="System role not supported"):
        render_chat(ChatTemplate(source, "", ""), messages)


@pytest.mark.parametrize("messages", [[SYSTEM], [SYSTEM, ASSISTANT], [*USER, SYSTEM]])
def test_a_refusal_that_moving_cannot_help_stays(messages: list[dict[str, str]]) -> None:
    with pytest.raises(TemplateError, match="System role not supported"):
        render_chat(ChatTemplate(NO_SYSTEM, "", ""), messages)


def test_the_first_error_is_the_answer() -> None:
    source = NO_SYSTEM + "{{ raise_exception('and nothing else either') }}"
    with pytest.raises(TemplateError, match="System role not supported"):
        render_chat(ChatTemplate(source, "", ""), [SYSTEM, *USER])


# Where templates are kept


def test_a_template_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(TemplateRefusal, match=r"chat_template\.jinja is not valid UTF-8"):
        template_of_directory(tmp_path)
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(TemplateRefusal, match=r"chat_template\.jinja is missing"):
        template_of_directory(tmp_path)


def test_where_a_directory_keeps_its_template(tmp_path: Path) -> None:
    assert template_of_directory(tmp_path) is None
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    assert template_of_directory(tmp_path) == "of the processor"
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "of the tokenizer"}')
    assert template_of_directory(tmp_path) == "of the tokenizer"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert template_of_directory(tmp_path) == "d"
    (tmp_path / "chat_template.jinja").write_text("own file é", "utf-8")
    assert template_of_directory(tmp_path) == "own file é"


@pytest.mark.parametrize("value", [3, {}, [{"name": "tool_use", "template": "t"}]])
def test_an_unclear_template_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(TemplateRefusal, match="'default'"):
        template_of_directory(tmp_path)
    with pytest.raises(TemplateRefusal, match="must be a string"):
        template_of_gguf({"tokenizer.chat_template": value})


PARTS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        PARTS,
        "{% if messages[0].content is string %}{{ raise_exception('parts!') }}{% endif %}" + PARTS,
    ],
)
def test_a_template_that_sees_parts_alone_is_given_texts_as_parts(source: str) -> None:
    """It would pass over a string letter by letter, and print nothing of it."""
    assert render(source) == "<user>Hi <b>é</b>"
    chat: list[dict[str, object]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <b>é</b>"},
        {"role": "user", "content": []},
    ]
    rendered = render_chat(ChatTemplate(source, "", ""), chat)
    assert rendered.text == "<system>Be brief.<user>Hi <b>é</b><user>"
    assert not rendered.system_moved


@pytest.mark.parametrize(
    "source",
    [
        # Another form for each role.
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' %}"
        "{% for part in m.content %}{{ part.text }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}",
        # What it wants beside the text.
        "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content[0].text }}{% endfor %}",
        "{% if not wanted %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content[0].text }}{% endfor %}",
        # And what it makes of it.
        "{% for m in messages %}[{{ m.role }}]"
        "{% for part in m.content %}{{ part.text | lower }}{% endfor %}{% endfor %}",
    ],
)
def test_how_a_template_wants_a_text_is_found_out_by_role(source: str) -> None:
    roles = ("system", "user", "assistant", "user")
    chat = [{"role": role, "content": f"text {index}"} for index, role in enumerate(roles)]
    assert ChatTemplate(source, "", "").render(chat, wanted=True) == (
        "[system]text 0[user]text 1[assistant]text 2[user]text 3"
    )


def test_a_template_that_takes_either_is_given_texts_as_they_are() -> None:
    either = "{% if messages[0].content is string %}text{% else %}parts{% endif %}"
    assert render(either + "{{ messages[0].content }}").startswith("text")
    assert render(either) == "text"
