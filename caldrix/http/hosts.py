"""Whose Host headers are answered: the defence against DNS rebinding.

A web page can make its own name resolve to a loopback address and then talk to a server there as if
it were the page's own origin. What it can't do is lie in the Host header.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable

from caldrix.http.body import shorten
from caldrix.http.errors import ApiError

# RFC 9110, 7.2, without its percent-encodings: a name or an IPv6 address in brackets, and a port.
_HOST = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^][:/?#@\s]+))(?::(?P<port>[0-9]*))?"
)


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can only mean this machine."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_host(header: str | None, allowed: Iterable[str]) -> None:
    """Refuses a request whose Host is no loopback name nor one of ``allowed``.

    A request without one, None, is HTTP/1.0, and comes from no browser. Raises ApiError: a 400 for
    what is no host at all, a 403 for another's.
    """
    if header is None:
        return
    host = _HOST.fullmatch(header)
    if host is None:
        raise ApiError(
            400,
            "the Host must be a name or an address, and a port where there is one, "
            f"got {json.dumps(shorten(header), ensure_ascii=False)}",
        )
    name = host["address"] or host["name"]
    if is_loopback(name) or name.lower() in {host.lower() for host in allowed}:
        return
    raise ApiError(
        403,
        f"the Host {name} is not a name of this machine; "
        f"to answer to it, start the server with --allow-host {name}",
    )
