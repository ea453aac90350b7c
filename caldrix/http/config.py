"""How a server listens, and its limits."""

from __future__ import annotations

from attrs import field, frozen

MEBIBYTE = 2**20
MOST_BODY = 4 * MEBIBYTE
"""Bytes of a request's body."""
MOST_BODY_WITH_IMAGES = 32 * MEBIBYTE
"""The same on the server of a model that sees, whatever the request."""


@frozen
class Timeouts:
    """How long a connection waits for its client, or lets it wait, each in seconds."""

    head: float = 30.0
    """For a request's head, from its first byte."""
    keep_alive: float = 75.0
    """For the next request's first byte."""
    write: float = 30.0
    """For the client to take the next 64 KiB of what is being sent to it."""
    linger: float = 3.0
    """For the client to close its side after the server has closed its own."""
    half_closed: float = 0.25
    """For the answer, once the client has ended its sending: it may still read, or be gone."""
    comment: float = 15.0
    """Of silence on a stream, after which it carries a comment, so that no proxy gives it up."""


@frozen(kw_only=True)
class ServerConfig:
    """A server's settings; times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8425
    """0 takes a free one."""
    allow_host: tuple[str, ...] = ()
    """Names that a Host header may carry on a loopback bind, beside the loopback's own."""
    most_body: int = MOST_BODY
    body_timeout: float = 60.0
    """For a request's whole body to arrive."""
    drain_timeout: float = 30.0
    """For requests to end by themselves once the server is asked to stop."""
    timeouts: Timeouts = field(factory=Timeouts)
