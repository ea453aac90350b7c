"""A server that is busy is asked again, a few times: a 429 is no answer that a case could judge."""

from __future__ import annotations

import time

import httpx2

BUSY = 429
TRIES = 4
_LONGEST_PAUSE = 5.0
"""Seconds before another try, whatever the server asks for."""


class PatientTransport(httpx2.BaseTransport):
    """Hands requests on to another transport, again where the answer is that it was busy."""

    def __init__(self, transport: httpx2.BaseTransport) -> None:
        self._transport = transport

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to ``request``: the last one, if the server stays busy."""
        # A body that is made while it is sent can be sent once.
        tries = TRIES if isinstance(request.stream, httpx2.ByteStream) else 1
        body = request.stream
        for _ in range(tries - 1):
            response = self._transport.handle_request(request)
            if response.status_code != BUSY:
                return response
            response.close()
            request.stream = body
            time.sleep(_pause(response.headers.get("retry-after", "")))
        return self._transport.handle_request(request)

    def close(self) -> None:
        """Close the transport behind."""
        self._transport.close()


def _pause(wanted: str) -> float:
    return min(float(wanted), _LONGEST_PAUSE) if wanted.isdecimal() else 1.0
