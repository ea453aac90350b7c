"""What a target can do, found out by asking it."""

from __future__ import annotations

import ipaddress
from collections.abc import Set
from typing import Any

import httpx2

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.target import Target

_NOT_THERE = frozenset({404, 405, 501})

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAA"
    "AACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
"""A PNG of one grey pixel."""

IMAGE_PART = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}


def discover(target: Target, without: Set[Capability]) -> frozenset[Capability]:
    """The capabilities of ``target``, less those that the person says it is ``without``.

    Only a plain sign counts as a lack: a route that isn't there, or a model that says it has no
    chat template. Whatever else goes wrong is for the cases to find.
    """
    found = {Capability.SAMPLING, Capability.TOKENS}
    chat = _try(target, CHAT)
    if chat is not None and _lacks_template(chat):
        found.add(Capability.NO_TEMPLATE)
    elif not _is_missing(chat):
        found.add(Capability.CHAT)
    if not _is_missing(_try(target, COMPLETIONS)):
        found.add(Capability.COMPLETIONS)
    if not _takes_images(target):
        found.add(Capability.TEXT_ONLY)
    if is_loopback(httpx2.URL(target.url).host):
        found.add(Capability.LOOPBACK)
    return frozenset(found - without)


def _try(target: Target, endpoint: Endpoint, **fields: Any) -> Answer | None:
    """The answer to a small request, or None where the connection broke."""
    try:
        return target.ask(endpoint, **fields)
    except httpx2.TransportError:
        return None


def _is_missing(answer: Answer | None) -> bool:
    return answer is not None and answer.status in _NOT_THERE


def _lacks_template(answer: Answer) -> bool:
    """Whether a plain chat question was refused for want of a template, as for a base model."""
    return answer.status == 400 and b'"messages"' in answer.body and b"template" in answer.body


def _takes_images(target: Target) -> bool:
    content = [IMAGE_PART, {"type": "text", "text": "Describe it."}]
    answer = _try(target, CHAT, messages=[{"role": "user", "content": content}])
    return answer is not None and answer.status == 200


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine's own name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
