"""HTTP/1.1 over a bare socket, for cases about connections and framing."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping

from attrs import frozen

from caldrix_conformance.endpoints import Endpoint


@frozen
class RawAnswer:
    """A response read from a socket, which stays open."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    def text(self, endpoint: Endpoint) -> object:
        """The text of the answer of ``endpoint`` that the body must be."""
        try:
            (choice,) = json.loads(self.body)["choices"]
            return endpoint.answer_text(choice)
        except (ValueError, KeyError, TypeError):
            raise AssertionError(f"no answer of {endpoint.path}: {self.seen}") from None

    @property
    def seen(self) -> str:
        """The status and the body's beginning, for messages."""
        return f"{self.status} {self.body[:200]!r}"


def request_bytes(method: str, path: str, host: str, value: object = None, **headers: str) -> bytes:
    """A request; ``value`` is its JSON body, None for none; ``headers`` spell - as _."""
    body = b"" if value is None else json.dumps(value).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if value is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


def read_answer(connection: socket.socket) -> RawAnswer:
    """The next response on ``connection``. AssertionError where none comes."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise AssertionError(f"no answer on the connection: {reason}") from None
    headers = {name.lower(): text for name, text in response.getheaders()}
    return RawAnswer(response.status, headers, body)


def is_closed(connection: socket.socket, within: float) -> bool:
    """Whether the other side ends the connection in the next ``within`` seconds."""
    connection.settimeout(within)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True
