"""What a target can do, found out by asking it."""

from __future__ import annotations

import ipaddress
from collections.abc import Set

import httpx2

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import CHAT, COMPLETIONS
from caldrix_conformance.target import Target

_NOT_THERE = frozenset({404, 405, 501})

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAA"
    "AABJRU5ErkJggg=="
)
"""A PNG of one grey pixel."""

IMAGE_PART = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}


def discover(target: Target, without: Set[Capability]) -> frozenset[Capability]:
    """The capabilities of ``target``, less those that the person says it is ``without``.

    Only a plain sign counts as a lack: a route that isn't there, or a model that says it has no
    chat template. Whatever else goes wrong is for the cases to find.
    """
    found = {Capability.SAMPLING, Capability.TOKEN_IDS}
    chat = target.ask(CHAT)
    if lacks_template(chat):
        found.add(Capability.NO_TEMPLATE)
    elif chat.status not in _NOT_THERE:
        found.add(Capability.CHAT)
    if target.ask(COMPLETIONS).status not in _NOT_THERE:
        found.add(Capability.COMPLETIONS)
    if not takes_images(target):
        found.add(Capability.TEXT_ONLY)
    if is_loopback(httpx2.URL(target.url).host):
        found.add(Capability.LOOPBACK)
    return frozenset(found - without)


def lacks_template(answer: Answer) -> bool:
    """Whether a plain chat question was refused for its messages: the model has no template."""
    return answer.status == 400 and b'"messages"' in answer.body and b"template" in answer.body


def takes_images(target: Target) -> bool:
    """Whether an image is answered like any other content."""
    content = [IMAGE_PART, {"type": "text", "text": "Describe it."}]
    return target.ask(CHAT, messages=[{"role": "user", "content": content}]).status == 200


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine's own name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
