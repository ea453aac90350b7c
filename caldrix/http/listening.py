"""The addresses a server listens on, taken before the model is loaded."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence

from caldrix.errors import Refusal

if sys.platform != "win32":
    import resource

_BACKLOG = 4096
"""Connections that wait to be accepted; the system may set a lower limit of its own."""
_MOST_FILES = 10_240
"""More than that some systems don't let a process have."""

_Address = tuple[str | int | bytes, ...]


class AddressRefused(Refusal):
    """The server can't have the address it was told to listen on."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Takes ``port`` on every address that ``host`` names; nothing is accepted before `listen`.

    Port 0 takes a free one, the same on all of them. Raises AddressRefused.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            if sockets and port == 0:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sockets.append(_bound(family, address))
    except OSError as error:
        close(sockets)
        raise _refused(error, host, port) from error
    return sockets


def listen(sockets: Sequence[socket.socket]) -> None:
    """Begins to accept. Raises AddressRefused, if another process began before it did."""
    for taken in sockets:
        try:
            taken.listen(_BACKLOG)
        except OSError as error:
            host, port = taken.getsockname()[:2]
            close(sockets)
            raise _refused(error, host, port) from error


def allow_many_connections() -> None:
    """Lets this process open as many files as it may: each connection is one.

    The limit that a shell begins with is often 1,024, for the sake of programs that call select().
    """
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def close(sockets: Sequence[socket.socket]) -> None:
    """Gives the addresses back."""
    for taken in sockets:
        taken.close()


def url(host: str, taken: socket.socket) -> str:
    """The address as a client writes it; one that means every address becomes localhost."""
    address, port = taken.getsockname()[:2]
    name = "localhost" if address in {"0.0.0.0", "::"} else host  # noqa: S104  # it is compared
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, _Address]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(family: socket.AddressFamily, address: _Address) -> socket.socket:
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.setblocking(False)
        taken.bind(address)
    except OSError:
        taken.close()
        raise
    return taken


def _refused(error: OSError, host: str, port: int) -> AddressRefused:
    if error.errno == errno.EADDRINUSE:
        return AddressRefused(
            f"port {port} on {host} is in use; choose another with --port, "
            "or let --port 0 find a free one"
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return AddressRefused(
            f"port {port} on {host} needs rights that this user lacks; "
            "choose one above 1023 with --port"
        )
    return AddressRefused(
        f"{host} is no address of this machine ({error.strerror}); "
        "choose another with --host, such as 127.0.0.1 or 0.0.0.0"
    )
