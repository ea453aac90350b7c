"""Whether a server that has nothing more to do holds nothing more."""

from __future__ import annotations

import httpx2
import trio

from tests.soak.load import Tally, gauges

_PATIENCE = 30.0
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio")


async def settle(url: str, tally: Tally) -> None:
    """Waits until nothing runs or waits, and holds the server's counts against the clients'."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=_PATIENCE) as client:
        now = await gauges(client)
        with trio.move_on_after(_PATIENCE):
            while any(now[name] for name in _GAUGES):  # nothing tells
                await trio.sleep(0.05)
                now = await gauges(client)
        for name in _GAUGES:
            tally.expect(now[name] == 0, f"{name} is {now[name]:g} when all is done")
        healthy = await client.get("/healthz")
        tally.expect(healthy.text == "ok", f"/healthz says {healthy.text}")
