"""Models from the hub, through its own library and a stand-in on the loopback address.

The library reads its addresses when it is imported, so each pull runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from attrs import define
from safetensors.numpy import save

from tests.support.loopback import Answer, LoopbackServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = save({"w": np.ones(8, np.float32)})
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "decider_config.json": b'{"temperature": 1}',
    "README.md": b"not needed",
    "onnx/model.safetensors": b"not needed",
    "model.safetensors": WEIGHTS,
}

PULL = """
import sys
from caldrix.errors import Refusal
from caldrix.weights.inventory import list_cached
from caldrix.weights.names import pull, resolve
class Loud:
    # One write a line: several threads tell of their bytes.
    def begin(self, what, total, done=0): sys.stderr.write(f"begin {what} {total}\\n")
    def advance(self, count): sys.stderr.write(f"advance {count}\\n")
    def note(self, text): sys.stderr.write(f"note {text}\\n")
try:
    get = pull if "check" in sys.argv else resolve
    resolved = get(sys.argv[1], Loud(), update="update" in sys.argv)
except Refusal as refusal:
    sys.exit(f"{type(refusal).__name__}: {refusal}")
print(resolved.path)
print(resolved.served_name)
print([(model.name, model.size) for model in list_cached()])
"""


@define
class Hub:
    """A repository on a stand-in for the hub, and a home of its own for the library."""

    server: LoopbackServer
    home: Path

    def publish(self, files: dict[str, bytes], commit: str = COMMIT, repo: str = "me/tiny") -> None:
        """Make ``files`` the repository's main revision; weights are announced by SHA-256."""
        siblings, tree = [], []
        for name, content in files.items():
            digest = hashlib.sha256(content).hexdigest()
            lfs = {"size": len(content), "sha256": digest, "pointerSize": 100}
            entry = {"rfilename": name, "size": len(content), "blobId": digest[:40]}
            node = {"type": "file", "path": name, "size": len(content), "oid": digest[:40]}
            large = name.endswith(".safetensors")
            siblings.append({**entry, **({"lfs": lfs} if large else {})})
            tree.append({**node, **({"lfs": {**lfs, "oid": digest}} if large else {})})
            self.serve(f"/{repo}/resolve/{commit}/{name}", content, commit, digest)
        info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}
        for revision in ("main", commit):
            self.json(f"/api/models/{repo}/revision/{revision}", info)
            self.json(f"/api/models/{repo}/tree/{revision}", tree)
        self.json(f"/api/models/{repo}", info)

    def serve(self, path: str, content: bytes, commit: str, etag: str) -> None:
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit}
        self.server.answers[path] = lambda: (200, headers, content)

    def json(self, path: str, value: object) -> None:
        raw = json.dumps(value).encode()
        self.server.answers[path] = lambda: (200, {"Content-Type": "application/json"}, raw)

    def pull(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(PULL, *arguments, **environment)

    def run(
        self, script: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        self.server.requests.clear()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env={
                **kept,
                "HF_ENDPOINT": self.server.url,
                "HF_HOME": str(self.home),
                "HF_HUB_DISABLE_TELEMETRY": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def pulled(self, *arguments: str, **environment: str) -> tuple[Path, str]:
        """A pull that succeeds: the snapshot, and what was said on stderr."""
        done = self.pull(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[0]), done.stderr

    def refused(self, *arguments: str, **environment: str) -> str:
        done = self.pull(*arguments, **environment)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]


@pytest.fixture
def hub(server: LoopbackServer, cache: Path, tmp_path: Path) -> Hub:
    stand_in = Hub(server, tmp_path / "hub-home")
    stand_in.publish(FILES)
    return stand_in


def test_what_a_model_needs_arrives_once(hub: Hub) -> None:
    done = hub.pull("me/tiny")
    assert done.returncode == 0, done.stderr
    path, served, cached = done.stdout.splitlines()
    needed = {"config.json", "tokenizer.json", "decider_config.json", "model.safetensors"}
    size = sum(len(FILES[name]) for name in needed)
    assert {file.name for file in Path(path).iterdir()} == needed
    assert (Path(path) / "model.safetensors").read_bytes() == WEIGHTS
    assert Path(path).is_relative_to(hub.home)
    assert served == "me/tiny"
    assert cached == f"[('me/tiny', {size})]"
    said = done.stderr.splitlines()
    assert said[0] == f"begin me/tiny {size}"
    assert sum(int(line.split()[1]) for line in said if line.startswith("advance")) == size

    assert hub.pulled("me/tiny")[0] == Path(path)
    assert hub.server.requests == []


def test_a_file_that_is_gone_is_fetched_again(hub: Hub) -> None:
    weights = hub.pulled("me/tiny")[0] / "model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    hub.pulled("me/tiny")
    assert weights.read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_fetched_again(name: str, hub: Hub) -> None:
    path = hub.pulled("me/tiny")[0] / name
    path.write_bytes(bytes(len(FILES[name])))
    hub.pulled("me/tiny")
    assert path.read_bytes() == bytes(len(FILES[name]))
    _, said = hub.pulled("me/tiny", "check")
    assert path.read_bytes() == FILES[name]
    assert f"note {path} was damaged: its sha256 was not" in said
    hub.pulled("me/tiny", "check")
    assert hub.server.requests == []


def test_an_update_brings_the_new_revision(hub: Hub) -> None:
    old, _ = hub.pulled("me/tiny")
    hub.publish({**FILES, "config.json": b'{"model_type": "llama"}'}, "f" * 40)
    assert hub.pulled("me/tiny")[0] == old
    new, _ = hub.pulled("me/tiny", "update")
    assert (new / "config.json").read_bytes() == b'{"model_type": "llama"}'
    assert hub.pulled("me/tiny")[0] == new
    assert hub.pulled(f"me/tiny@{COMMIT}")[0] == old


def test_other_bytes_than_announced_are_removed(hub: Hub) -> None:
    weights = f"/me/tiny/resolve/{COMMIT}/model.safetensors"
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    hub.serve(weights, WEIGHTS[:-1] + b"x", COMMIT, digest)
    refusal = hub.refused("me/tiny")
    assert refusal.startswith("DownloadFailed: model.safetensors does not have the sha256")
    hub.serve(weights, WEIGHTS, COMMIT, digest)
    assert (hub.pulled("me/tiny")[0] / "model.safetensors").read_bytes() == WEIGHTS


def test_shards_arrive_with_their_index(hub: Hub) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = json.dumps({"weight_map": dict(zip("ab", names, strict=True))}).encode()
    shards = {
        name: save({key: np.ones(2, np.float32)}) for key, name in zip("ab", names, strict=True)
    }
    files = {"config.json": b"{}", "model.safetensors.index.json": index, **shards}
    hub.publish(files, repo="me/sharded")
    assert {file.name for file in hub.pulled("me/sharded")[0].iterdir()} == set(files)


def test_without_the_hub(hub: Hub) -> None:
    refusal = hub.refused("me/tiny", HF_HUB_OFFLINE="1")
    assert refusal.startswith("DownloadFailed: me/tiny could not be fetched: ")
    assert refusal.endswith("`caldrix models list` names the models on this machine")
    hub.run("from huggingface_hub import snapshot_download; snapshot_download('me/tiny')")
    # What another tool fetched serves, and is said to be unchecked.
    _, said = hub.pulled("me/tiny", HF_HUB_OFFLINE="1")
    assert "note the hub cannot be reached: using its cached copy of me/tiny, unchecked" in said
    assert hub.server.requests == []


def _error(code: str, status: int) -> Answer:
    return status, {"X-Error-Code": code, "X-Error-Message": "because"}, b"{}"


def test_what_the_hub_refuses(hub: Hub) -> None:
    answers = hub.server.answers
    answers["/api/models/me/none/revision/main"] = lambda: _error("RepoNotFound", 404)
    assert "ModelNotFound: the hub has no model me/none" in hub.refused("me/none")
    answers["/api/models/me/tiny/revision/v9"] = lambda: _error("RevisionNotFound", 404)
    assert hub.refused("me/tiny@v9") == "ModelNotFound: me/tiny has no revision v9"
    answers["/api/models/me/gated/revision/main"] = lambda: _error("GatedRepo", 403)
    assert "me/gated is gated: accept its terms" in hub.refused("me/gated")


def test_a_repository_without_weights_to_read(hub: Hub) -> None:
    hub.publish({"config.json": b"{}", "model-q4.gguf": b"GGUF"}, repo="me/gguf")
    refusal = hub.refused("me/gguf")
    assert refusal == (
        "DownloadFailed: me/gguf has no safetensors weights; "
        "it has GGUF files: download one and name its path"
    )
    hub.publish({"model.safetensors": WEIGHTS}, repo="me/bare")
    assert hub.refused("me/bare") == "DownloadFailed: me/bare has no config.json"
