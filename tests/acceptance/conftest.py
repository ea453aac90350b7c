"""The command a user types, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.announced import announced


@contextmanager
def caldrix_serve(*arguments: str) -> Iterator[str]:
    """`caldrix serve` on a free port; the value is its address once it says that it is ready."""
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("caldrix")), "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = announced(process.stdout)
        assert address is not None, "the server ended before it was ready"
        yield address
    finally:
        process.terminate()
        status = process.wait(timeout=60)
        process.stdout.close()
    assert status == 0


@pytest.fixture(scope="session")
def smollm2_server(smollm2_path: Path) -> Iterator[str]:
    """The embedded model, served."""
    with caldrix_serve("smollm2") as address:
        yield address


@pytest.fixture(scope="session")
def gemma3_server(gemma3_path: Path) -> Iterator[str]:
    """A base model without a chat template, served."""
    with caldrix_serve("gemma3-270m") as address:
        yield address
