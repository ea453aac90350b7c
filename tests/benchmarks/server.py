"""`caldrix serve` as a process of its own, for benchmarks to ask."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from caldrix.errors import Refusal
from caldrix.weights.names import DEFAULT_MODEL
from tests.support.announced import announced

_DRAIN = 30.0


@contextmanager
def serve(flags: Sequence[str], model: str = DEFAULT_MODEL) -> Iterator[str]:
    """`caldrix serve` on a free port, as a process of its own; the value is its address."""
    command = Path(sys.executable).with_name("caldrix")
    process = subprocess.Popen(
        [command, "serve", model, "--port=0", "--log-level=warning", *flags],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = announced(process.stdout)
        if url is None:
            raise Refusal("the server ended before it was ready; it has said why")
        yield url
    finally:
        process.terminate()
        process.wait(_DRAIN)
        process.stdout.close()


def served_model(url: str) -> str:
    """The name that the server's model is asked by."""
    (model,) = httpx2.get(f"{url}/v1/models", trust_env=False).json()["data"]
    name: str = model["id"]
    return name
