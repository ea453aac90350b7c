"""What routes take and give, without a word of the framework that carries it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from caldrix.http.watch import RequestWatch

if TYPE_CHECKING:
    from caldrix.http.service import Service

JSON = "application/json"


@frozen
class Incoming:
    """A request: its body, whole, and what it says the body is."""

    watch: RequestWatch
    """What its handler tells of it as it goes."""
    path_parameters: Mapping[str, str] = field(factory=dict)
    """What stands in the path in the place of the route's ``<names>``."""
    content_type: str | None = None
    body: bytes = field(default=b"", repr=False)


@frozen
class Answer:
    """A whole answer."""

    body: bytes = field(repr=False)
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(factory=dict)


@frozen(eq=False)
class EventStream:
    """An answer in server-sent events as they come, each of the generator's items one or several.

    The answer begins with the first event, or with a comment if that is long in coming. An error
    before becomes an ordinary error answer, and one after it the last event. The generator is
    closed whatever happens, if it was ever started.
    """

    events: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(factory=dict)


Handler = Callable[["Service", Incoming], Awaitable[Answer | EventStream]]


@frozen
class Route:
    """A path, its method, and the handler of both; ``<name>`` in a path is any one segment."""

    method: str
    path: str
    handler: Handler
    recorded: bool = False
    """Whether its requests are told of: in records, metrics and the log."""
