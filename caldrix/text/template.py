"""Chat templates: a model's own program that turns messages into its prompt.

Templates are Jinja, with what transformers gives them, in a sandbox whose time and size are
bounded (see `template_sandbox` and `allowance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from types import TracebackType

import jinja2
from attrs import frozen

from caldrix.text.allowance import Allowance, RenderLimits, current_allowance
from caldrix.text.errors import TemplateError, TemplateRefusal
from caldrix.text.template_sandbox import TemplateEnvironment

_LONGEST_SOURCE = 1024**2
_LONGEST_TIME_FORMAT = 256
_PROBES = ("a text", "another one")
_CHATS: Sequence[Sequence[str | None]] = (
    (None,),
    ("user", None),
    ("system", None),
    ("system", "user", None),
    (None, "user"),
    ("user", None, "user"),
)
"""Chats that a template may want; None is the role that is in question."""
_MOST_ROLES = 16
"""Of which it is remembered how a template wants them; any others are tried each time."""
# What a template can raise: its author's mistakes, and messages it was not written for.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # also RecursionError
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled chat template. Safe to use from several threads.

    Raises TemplateRefusal when ``source`` is not a template, naming the line.
    """

    def __init__(
        self,
        source: str,
        bos_token: str,
        eos_token: str,
        *,
        limits: RenderLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._template = _compile(source)
        self._limits = limits or RenderLimits()
        # Whoever reads a part's text says so; to find out more takes some renderings.
        self._may_see_parts = "text" in source
        self._parts_alone: dict[object, bool] = {}
        self._globals = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "strftime_now": lambda time_format: _format_time(now(), time_format),
        }

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """The prompt for ``messages``; ``variables`` go to the template under their names.

        A content that is a text is given as a list of one part where the template sees that alone,
        as those of models with eyes may. Raises TemplateError: what the template says through
        ``raise_exception``, or a sentence about what it did wrong or which limit it went over.
        """
        given = [
            _in_parts(message)
            if isinstance(message.get("content"), str)
            and self._sees_parts_alone(message.get("role"), variables)
            else message
            for message in messages
        ]
        return self._render(given, add_generation_prompt=add_generation_prompt, **variables)

    def _sees_parts_alone(self, role: object, variables: Mapping[str, object]) -> bool:
        """Whether a text of that role is left out of the prompt, and is not as a part."""
        if not self._may_see_parts:
            return False
        key = role, frozenset(variables)
        known = self._parts_alone.get(key)
        if known is None:
            known = not self._shows(role, str, variables) and self._shows(
                role, _as_parts, variables
            )
            if len(self._parts_alone) < _MOST_ROLES:
                self._parts_alone[key] = known
        return known

    def _shows(
        self, role: object, form: Callable[[str], object], variables: Mapping[str, object]
    ) -> bool:
        """Whether another text of that role, so given, makes another prompt of any likely chat."""
        for chat in _CHATS:
            rendered = set()
            for text in _PROBES:
                messages = [
                    {"role": other or role, "content": form(text if other is None else "Hello.")}
                    for other in chat
                ]
                try:
                    rendered.add(self._render(messages, add_generation_prompt=True, **variables))
                except TemplateError:
                    break
            if len(rendered) == len(_PROBES):
                return True
        return False

    def _render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        **variables: object,
    ) -> str:
        values = {
            "tools": None,
            "documents": None,
            **self._globals,
            **variables,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        allowance = Allowance(self._limits)
        with _running(allowance):
            allowance.weigh(values)
            pieces, length = [], 0
            for piece in self._template.generate(values):
                length += len(piece)
                allowance.fits(length)
                allowance.spend(1)
                pieces.append(piece)
            return "".join(pieces)


def _in_parts(message: Mapping[str, object]) -> Mapping[str, object]:
    content = message.get("content")
    return {**message, "content": _as_parts(content)} if isinstance(content, str) else message


def _text_alone(content: object) -> str | None:
    """A content as text; None if it is none, or has other parts, which must keep their order."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if part.get("type") == "text"]
        return "".join(texts) if len(texts) == len(content) else None
    return content if isinstance(content, str) else None


def _as_parts(text: str) -> list[Mapping[str, str]]:
    return [{"type": "text", "text": text}]


@frozen
class RenderedChat:
    """A prompt, and whether its system message had to move into the first user message."""

    text: str
    system_moved: bool


def render_chat(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool = True,
    **variables: object,
) -> RenderedChat:
    """Render ``messages``, moving the system text when the template refuses it.

    When rendering fails and the first message is a system message, its text goes to the top of
    the first user message, with a blank line after it. If that fails too, the first TemplateError
    is raised.
    """

    def render(chat: Sequence[Mapping[str, object]]) -> str:
        return template.render(chat, add_generation_prompt=add_generation_prompt, **variables)

    try:
        return RenderedChat(render(messages), system_moved=False)
    except TemplateError as refused:
        moved = _move_system(messages)
        if moved is None:
            raise
        try:
            return RenderedChat(render(moved), system_moved=True)
        except TemplateError:
            raise refused from None


def _move_system(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]] | None:
    """``messages`` with the leading system text in the first user message; None if impossible."""
    if not messages or messages[0].get("role") != "system":
        return None
    system, rest = _text_alone(messages[0].get("content")), list(messages[1:])
    if system is None:
        return None
    for index, message in enumerate(rest):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            rest[index] = {**message, "content": f"{system}\n\n{content}"}
        elif isinstance(content, list):
            rest[index] = {**message, "content": [*_as_parts(f"{system}\n\n"), *content]}
        else:
            return None
        return rest
    return None


@cache
def _environment() -> TemplateEnvironment:
    return TemplateEnvironment()


def _compile(source: str) -> jinja2.Template:
    if len(source) > _LONGEST_SOURCE:
        raise TemplateRefusal(
            f"the chat template is longer than {_LONGEST_SOURCE} characters; use another one"
        )
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        reason = (error.message or "")[:200]
        raise TemplateRefusal(
            f"the chat template is broken at line {error.lineno}: {reason}; fix it or use"
            " another one"
        ) from error
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        raise TemplateRefusal(
            f"the chat template cannot be compiled ({error}); it nests too deeply or holds a"
            " number that is too long"
        ) from error


@contextmanager
def _running(allowance: Allowance) -> Iterator[None]:
    """A rendering: metered by ``allowance``, its faults as TemplateError."""
    token = current_allowance.set(allowance)
    try:
        yield
    except _FAULTS as error:
        raise TemplateError(_describe(error)) from error
    finally:
        current_allowance.reset(token)


def _describe(error: BaseException) -> str:
    """What went wrong and in which line of the template."""
    what = str(error)
    if isinstance(error, RecursionError):
        what = "it nests too deeply"
    elif not isinstance(error, jinja2.TemplateError):
        what = f"{type(error).__name__}: {error}"
    line = _template_line(error.__traceback__)
    where = "" if line is None else f" at line {line}"
    return f"the chat template failed{where}: {what}"


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost line of the template that a traceback passed, as jinja2 rewrote it."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _format_time(moment: datetime, time_format: object) -> str:
    """``strftime_now``: the date and time a template puts into its prompt."""
    if not isinstance(time_format, str) or len(time_format) > _LONGEST_TIME_FORMAT:
        raise TemplateError("the chat template calls strftime_now with a format it cannot take")
    return moment.strftime(time_format)
