"""Whose Host headers are answered: the defence against DNS rebinding.

A web page can make its own name resolve to a loopback address and then talk to a server there as if
it were the page's own origin. What it can't do is lie in the Host header.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from caldrix.http.errors import ApiError


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can only mean this machine."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """The name or address in a Host header, without its port and an address's brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def check_host(header: str, allowed: Iterable[str]) -> None:
    """Refuses a request whose Host is no loopback name nor one of ``allowed``.

    A request without one (HTTP/1.0) comes from no browser. Raises ApiError, a 403.
    """
    name = host_name(header) or header
    if not name or is_loopback(name) or name.lower() in {host.lower() for host in allowed}:
        return
    raise ApiError(
        403,
        f"the Host {name} is not a name of this machine; "
        f"to answer to it, start the server with --allow-host {name}",
    )
