"""What a target can do, found out by asking it.

Only a plain sign counts as a lack: a route that isn't there, or a refusal in the contract's own
words for a model of another kind. Whatever else goes wrong is for the cases to find.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Set

import httpx2

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.contracts.caldrix.images import PIXEL
from caldrix_conformance.contracts.caldrix.speculation import REPETITIVE
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, ENDPOINTS, SYSTEMONE
from caldrix_conformance.target import Target
from caldrix_conformance.traffic import EndlessAnswer

_NOT_THERE = frozenset({404, 405, 501})

_MODEL_UNFIT = (b"template", b"label")
"""What a refusal speaks of where the model, and not the request, keeps it from being answered."""


def discover(target: Target, without: Set[Capability]) -> frozenset[Capability]:
    """The capabilities of ``target``, less those that the person says it is ``without``."""
    found = {Capability.SAMPLING}
    found.update(_generation(target))
    if not _lacks_tokens(target):
        found.add(Capability.TOKENS)
    found.update(_systemone(target))
    found.add(Capability.VISION if _takes_images(target) else Capability.TEXT_ONLY)
    routes = ((Capability.METRICS, "/metrics"), (Capability.TELEMETRY, "/debug/requests"))
    found.update(capability for capability, path in routes if not _is_missing(_get(target, path)))
    if is_loopback(httpx2.URL(target.url).host):
        found.add(Capability.LOOPBACK)
    return frozenset(found - without)


def _generation(target: Target) -> Iterator[Capability]:
    chat = _ask(target, CHAT.path, target.body(CHAT, {}))
    if chat is not None and _lacks_template(chat):
        yield Capability.NO_TEMPLATE
    elif not _is_missing(chat):
        yield Capability.CHAT
    fields = {"prompt": REPETITIVE, "max_tokens": 24}
    completion = _ask(target, COMPLETIONS.path, target.body(COMPLETIONS, fields))
    if not _is_missing(completion):
        yield Capability.COMPLETIONS
    if completion is not None and b'"speculative"' in completion.body:
        yield Capability.SPECULATION


def _lacks_tokens(target: Target) -> bool:
    """Whether ids are known neither as a prompt nor in an answer; one of the two is a mistake."""
    given = _ask(target, COMPLETIONS.path, target.body(COMPLETIONS, {"prompt": [1]}))
    body = {"return_token_ids": True}
    told = [_ask(target, one.path, target.body(one, body)) for one in ENDPOINTS]
    return (
        given is not None
        and given.status != 200
        and all(answer is not None and b'"token_ids"' not in answer.body for answer in told)
    )


def _systemone(target: Target) -> Iterator[Capability]:
    # Without instructions and with one option: a decider refuses the first, a chat model neither.
    question = {"type": "choice", "criteria": {"only": None}}
    body = {"model": target.model, "state": "s", "questions": {"q": question}}
    answer = _ask(target, SYSTEMONE, body)
    if _is_missing(answer):
        return
    refused = answer is not None and answer.status != 200
    said = answer.body if answer is not None and refused else b""
    if b"max-batch" in said:
        yield Capability.BATCHED
    elif b"this model is a decider" in said:
        yield from (Capability.SYSTEMONE, Capability.DECIDER)
    elif not any(word in said for word in _MODEL_UNFIT):
        yield from (Capability.SYSTEMONE, Capability.ZERO_SHOT)


def _ask(target: Target, path: str, body: object) -> Answer | None:
    """The answer to a small request, or None where the connection broke."""
    try:
        return target.post(path, body)
    except (httpx2.RequestError, EndlessAnswer):
        return None


def _get(target: Target, path: str) -> Answer | None:
    try:
        return target.get(path)
    except (httpx2.RequestError, EndlessAnswer):
        return None


def _is_missing(answer: Answer | None) -> bool:
    return answer is not None and answer.status in _NOT_THERE


def _lacks_template(answer: Answer) -> bool:
    """Whether a plain chat question was refused for want of a template, as for a base model."""
    return 400 <= answer.status < 500 and b"template" in answer.body


def _takes_images(target: Target) -> bool:
    content = [PIXEL.part(), {"type": "text", "text": "Describe it."}]
    messages = [{"role": "user", "content": content}]
    answer = _ask(target, CHAT.path, target.body(CHAT, {"messages": messages}))
    return answer is not None and answer.status == 200


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine's own name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
