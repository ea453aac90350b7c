"""The server being judged: its address, its model, and the few ways in which cases ask it."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx2
from attrs import frozen

from caldrix_conformance.answers import Answer, Completion, Streamed
from caldrix_conformance.brief import asked
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.errors import TargetUnreachable
from caldrix_conformance.patience import PatientTransport
from caldrix_conformance.raw import Connection
from caldrix_conformance.traffic import Bound, EndlessAnswer, RecordingTransport, Traffic

TIMEOUT = 60.0
"""Seconds for each wait for bytes: a slow model is slow, not broken."""
WAITS = 10
"""So many such times an answer may take in all."""
CONNECT_TIMEOUT = 5.0
"""Seconds for a connection."""

_PATIENCE = 5
"""Attempts, a second apart, to reach a target that was there before."""

QUESTION = "What is the capital of France?"


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""The value of a field that is left out of a request, also one that would be sent by default."""


@frozen
class Target:
    """A server at ``url`` (no trailing /v1) that serves ``model``."""

    url: str
    model: str
    client: httpx2.Client
    traffic: Traffic
    timeout: float = TIMEOUT
    """Seconds for each wait for bytes."""
    capabilities: frozenset[Capability] = frozenset()

    @classmethod
    @contextmanager
    def connect(
        cls, url: str, model: str | None = None, timeout: float = TIMEOUT
    ) -> Iterator[Self]:
        """Reach the server at ``url`` and learn its model's name, unless ``model`` gives it.

        Raises TargetUnreachable when no server answers or /v1/models names no model.
        """
        root = base_url(url)
        traffic = Traffic()
        # The environment's proxies are for the world outside; a target is where its URL says.
        # Reading the certificates of the world takes longer than many a case.
        verify = ssl.create_default_context() if root.startswith("https:") else False
        transport = httpx2.HTTPTransport(trust_env=False, verify=verify)
        with httpx2.Client(
            base_url=root,
            timeout=httpx2.Timeout(timeout, connect=CONNECT_TIMEOUT),
            trust_env=False,
            transport=PatientTransport(RecordingTransport(transport, traffic, timeout * WAITS)),
        ) as client:
            try:
                response = client.get("/v1/models")
            except (httpx2.RequestError, EndlessAnswer) as error:
                raise TargetUnreachable(f"{shown_url(root)}: {_trouble(error)}") from error
            served = model if model is not None else _served_model(root, response)
            yield cls(root, served, client, traffic, timeout)

    def body(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body: the model, a short question, one token greedily; then ``fields``."""
        body = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0,
            **endpoint.prompt(QUESTION),
            **fields,
        }
        return {name: value for name, value in body.items() if value is not ABSENT}

    def get(self, path: str, **headers: str) -> Answer:
        """GET ``path``."""
        return self.send("GET", path, headers=headers)

    def post(self, path: str, value: object, *, told: str = "") -> Answer:
        """POST a JSON value; ``told`` is what messages tell of it."""
        return self.send(
            "POST",
            path,
            content=json.dumps(value, separators=(",", ":")).encode(),
            headers={"Content-Type": "application/json"},
            request=value,
            told=told,
        )

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        request: object = None,
        told: str = "",
    ) -> Answer:
        """Any request; ``request`` is the JSON value behind ``content``, where it has one."""
        response = self.client.request(method, path, content=content, headers=headers)
        lowered = {name.lower(): value for name, value in response.headers.items()}
        return Answer(method, path, request, response.status_code, lowered, response.content, told)

    def ask(self, endpoint: Endpoint, **fields: Any) -> Answer:
        """A request to ``endpoint`` made of the defaults of `body` and ``fields``."""
        told = asked(fields, ABSENT)
        return self.post(endpoint.path, self.body(endpoint, fields), told=told)

    def complete(self, endpoint: Endpoint, **fields: Any) -> Completion:
        """What ``endpoint`` answers, which must be a whole answer."""
        return self.ask(endpoint, **fields).completion(endpoint)

    def stream(self, endpoint: Endpoint, **fields: Any) -> Streamed:
        """What ``endpoint`` streams, read to its end."""
        return Streamed(self.ask(endpoint, stream=True, **fields), endpoint)

    def chat(self, **fields: Any) -> Completion:
        """What the chat endpoint answers."""
        return self.complete(CHAT, **fields)

    def completions(self, **fields: Any) -> Completion:
        """What the completions endpoint answers."""
        return self.complete(COMPLETIONS, **fields)

    @contextmanager
    def open_stream(self, endpoint: Endpoint, **fields: Any) -> Iterator[httpx2.Response]:
        """A stream that the case reads itself, and may leave early."""
        body = self.body(endpoint, {"stream": True, **fields})
        with self.client.stream("POST", endpoint.path, json=body) as response:
            yield response

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of its own, for cases about bytes on the wire."""
        exchange = self.traffic.begin("a connection")
        bound = Bound(self.timeout * WAITS)
        with socket.create_connection(self._address, timeout=CONNECT_TIMEOUT) as plain:
            plain.settimeout(self.timeout)
            if self.url.startswith("https:"):
                context = ssl.create_default_context()
                with context.wrap_socket(plain, server_hostname=self._address[0]) as wrapped:
                    yield Connection(wrapped, exchange, bound)
            else:
                yield Connection(plain, exchange, bound)

    def answers(self) -> bool:
        """Whether it still takes connections; one that is being started again has a moment."""
        for attempt in range(_PATIENCE):
            try:
                with socket.create_connection(self._address, timeout=CONNECT_TIMEOUT):
                    return True
            except OSError:
                time.sleep(1 if attempt + 1 < _PATIENCE else 0)
        return False

    @property
    def _address(self) -> tuple[str, int]:
        url = httpx2.URL(self.url)
        return url.host, url.port or (443 if url.scheme == "https" else 80)

    @property
    def host_header(self) -> str:
        """The Host header that names this target."""
        return httpx2.URL(self.url).netloc.decode()


def base_url(url: str) -> str:
    """``url`` as a server's root: with a scheme, without /v1 and the last slash.

    Raises TargetUnreachable if it is no http or https URL.
    """
    text = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise TargetUnreachable(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise TargetUnreachable(f"{url!r} is no http URL; give one like http://localhost:8425")
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise TargetUnreachable(f"{url!r} has no port from 1 to 65535")
    path = parsed.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return str(parsed.copy_with(path=path, query=None, fragment=None)).rstrip("/")


def shown_url(url: str) -> str:
    """``url`` as it may be shown: without a name and password."""
    parsed = httpx2.URL(url)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"{parsed.scheme}://{host}{port}{parsed.path.rstrip('/')}"


def _trouble(error: Exception) -> str:
    """Why a target can't be asked, and what to do about it."""
    told = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in told:
        return (
            f"its certificate isn't trusted here ({told}); "
            "name a file of authorities to trust in SSL_CERT_FILE"
        )
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"no server answers ({told}); start one, or give the address of one that runs"
    return f"no answer to GET /v1/models ({told}); is an HTTP server there, and the right one?"


def _served_model(root: str, response: httpx2.Response) -> str:
    try:
        name = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        name = None
    if isinstance(name, str):
        return name
    status = response.status_code
    if response.is_redirect:
        advice = f"give the address it points to, {response.headers.get('location', 'unnamed')}"
    elif status in (401, 403):
        advice = "it wants a key, or another Host, which the suite has not"
    else:
        advice = "give the model's name with --model"
    raise TargetUnreachable(
        f"{shown_url(root)}/v1/models answered {status} and names no model; {advice}"
    )
