"""Which Host headers are answered on a loopback address."""

from __future__ import annotations

import pytest

from caldrix.http.config import ServerConfig
from caldrix.http.hosts import is_loopback
from tests.support.serving import says, serving, trio_test
from tests.support.wire import connected

OURS = [
    "localhost",
    "LOCALHOST:1",
    "127.0.0.1:8425",
    "127.8.9.10",
    "[::1]:80",
    "x.localhost",
    "localhost:",
]
FOREIGN = ["evil.example", "evil.example:8425", "192.168.0.1", "localhost.evil.example", "é"]
NO_HOST = ["", "[", ":8425", "localhost:8425:1", "localhost:abc", "a@localhost", "[::1]x", "::1"]


@trio_test
async def test_a_foreign_host_is_refused() -> None:
    config = ServerConfig(port=0, allow_host=("Box.lan",))
    async with serving(says("ok"), config=config) as server:
        for host in [*OURS, "box.LAN:8425"]:
            response = await server.client.get("/v1/models", headers={b"host": host.encode()})
            assert response.status_code == 200, host
        for path in ("/v1/models", "/healthz", "/nope"):
            for host in FOREIGN:
                response = await server.client.get(path, headers={b"host": host.encode()})
                assert response.status_code == 403, host
                assert response.json()["error"]["param"] is None
        for host in NO_HOST:
            response = await server.client.get("/v1/models", headers={b"host": host.encode()})
            assert response.status_code == 400, host
            assert response.json()["error"]["message"] == (
                "the Host must be a name or an address, and a port where there is one, "
                f'got "{host}"'
            )
        response = await server.client.get("/healthz", headers={"host": "evil.example:8425"})
        assert response.json()["error"]["message"] == (
            "the Host evil.example is not a name of this machine; "
            "to answer to it, start the server with --allow-host evil.example"
        )


@trio_test
async def test_the_authority_of_a_whole_url_is_the_host() -> None:
    async with serving(says("ok")) as server, connected(server) as wire:
        for url, host, status in [
            ("http://localhost:1/healthz", "evil.example", 200),
            ("HTTP://127.0.0.1/healthz?a=b", "", 200),
            ("http://evil.example/healthz", "localhost", 403),
            ("http://localhost:1:2/healthz", "localhost", 400),
            ("http://evil@localhost/healthz", "localhost", 400),
        ]:
            await wire.send(f"GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await wire.answer()).status == status, url
        # A request of HTTP/1.0 need not have one.
        await wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await wire.answer()).body == b"ok"


@trio_test
async def test_a_server_for_the_network_answers_to_any_name() -> None:
    config = ServerConfig(host="0.0.0.0", port=0)
    async with serving(says("ok"), config=config) as server:
        assert server.url.startswith("http://localhost:")
        for host in FOREIGN:
            response = await server.client.get("/healthz", headers={b"host": host.encode()})
            assert response.text == "ok", host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "128.0.0.1", "example.com", "", "local host"])
def test_not_a_loopback(host: str) -> None:
    assert not is_loopback(host)
