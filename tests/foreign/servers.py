"""The servers to be judged: how each is started on a model's file, and which version it is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import frozen

CONTEXT = 4096
"""Tokens; the same for all."""

# What the servers are told to call the model, so that no report names a path of this machine.
MODEL_NAME = "smollm2"


@frozen
class Server:
    """A server that can be started."""

    name: str
    version: str
    command: Callable[[Path, int], Sequence[str]]
    """The command that serves a GGUF file at a port of 127.0.0.1."""

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


def caldrix() -> Server:
    """This project's own, from this environment."""
    run = [sys.executable, "-c", "from caldrix.cli.main import main; main()"]
    served = ["--served-name", MODEL_NAME, "--context", str(CONTEXT), "--speculate", "ngram"]
    return Server(
        "caldrix",
        _package_version(Path(sys.executable), "caldrix"),
        lambda model, port: [*run, "serve", str(model), "--port", str(port), *served],
    )


def llama_cpp_python(python: Path) -> Server:
    """The OpenAI-compatible server of llama-cpp-python, in the environment of ``python``."""
    run = [str(python), "-m", "llama_cpp.server", "--host", "127.0.0.1"]
    served = ["--model_alias", MODEL_NAME, "--n_ctx", str(CONTEXT)]
    return Server(
        "llama-cpp-python",
        _package_version(python, "llama-cpp-python"),
        lambda model, port: [*run, "--model", str(model), "--port", str(port), *served],
    )


def llama_server() -> Server | None:
    """llama.cpp's own server, where there is one on the PATH."""
    program = shutil.which("llama-server")
    if program is None:
        return None
    run = [program, "--host", "127.0.0.1"]
    served = ["--alias", MODEL_NAME, "--ctx-size", str(CONTEXT)]
    return Server(
        "llama-server",
        _llama_server_version(program),
        lambda model, port: [*run, "--model", str(model), "--port", str(port), *served],
    )


def _package_version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _llama_server_version(program: str) -> str:
    """The build's number, of a line like ``version: 4567 (a4f23b1)`` on stderr."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    found = re.search(r"^version: (\S+)", done.stderr + done.stdout, re.MULTILINE)
    return found[1] if found else "of unknown version"
