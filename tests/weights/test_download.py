"""The resumable download: cut connections, corrupt parts, two at once, full disks."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from caldrix.weights import cache, download
from caldrix.weights.download import Remote, new_client
from caldrix.weights.errors import CacheUnusable, DownloadFailed
from caldrix.weights.progress import SILENT
from tests.support.loopback import Answer, LoopbackServer, Recorder

CONTENT = bytes(range(256)) * 800


def remote(server: LoopbackServer, content: bytes = CONTENT) -> Remote:
    server.answers.setdefault("/file", content)
    digest = hashlib.sha256(content).hexdigest()
    return Remote(f"{server.url}/file", len(content), digest)


def fetch(remote: Remote, path: Path, progress: Recorder) -> None:
    with new_client() as client:
        download.download(client, remote, path, progress)


def part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def test_a_file_arrives_whole_and_once(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    path = tmp_path / "deep" / "file.gguf"
    fetch(remote(server), path, progress)
    fetch(remote(server), path, progress)
    assert path.read_bytes() == CONTENT
    assert server.requests == [("GET", "/file", None)]
    assert progress.begun == [("file.gguf", len(CONTENT), 0)]
    assert progress.received == len(CONTENT)
    assert not part_of(path).exists()


def test_a_cut_connection_is_resumed(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    path = tmp_path / "file"
    server.cuts["/file"] = [1000, 2000]
    fetch(remote(server), path, progress)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, _, wanted in server.requests] == [None, "bytes=1000-", "bytes=3000-"]
    assert [done for _, _, done in progress.begun] == [0, 1000, 3000]
    assert len(progress.notes) == 2


def test_a_later_try_goes_on_from_the_part(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    path = tmp_path / "file"
    wanted = remote(server)
    server.cuts["/file"] = [1000] + [0] * 10
    with pytest.raises(DownloadFailed, match=f"from the 1000 of {len(CONTENT)} bytes"):
        fetch(wanted, path, progress)
    assert not path.exists()
    assert part_of(path).read_bytes() == CONTENT[:1000]
    server.cuts.clear()
    server.requests.clear()
    fetch(wanted, path, progress)
    assert path.read_bytes() == CONTENT
    assert server.requests == [("GET", "/file", "bytes=1000-")]


def test_a_server_without_ranges_starts_over(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    path = tmp_path / "file"
    server.ranges = False
    server.cuts["/file"] = [1000]
    fetch(remote(server), path, progress)
    assert path.read_bytes() == CONTENT
    assert [done for _, _, done in progress.begun] == [0, 0]


@pytest.mark.parametrize("stale", [b"x" * 500, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 1)])
def test_a_corrupt_part_is_fetched_anew(
    stale: bytes, server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    path = tmp_path / "file"
    part_of(path).write_bytes(stale)
    fetch(remote(server), path, progress)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1] == ("GET", "/file", None)


def test_wrong_bytes_never_get_the_name(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    path = tmp_path / "file"
    server.answers["/file"] = CONTENT[::-1]
    with pytest.raises(DownloadFailed, match="does not have the announced sha256"):
        fetch(remote(server), path, progress)
    assert not path.exists()
    assert not part_of(path).exists()
    assert len(server.requests) == 1


def test_more_bytes_than_announced(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    server.answers["/file"] = CONTENT + b"x"
    with pytest.raises(DownloadFailed, match=f"more than the announced {len(CONTENT)} bytes"):
        fetch(remote(server), tmp_path / "file", progress)
    assert not (tmp_path / "file").exists()


def test_passing_trouble_is_waited_out(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    answers: list[Answer] = [(503, {}, b""), (429, {}, b""), (200, {}, CONTENT)]
    server.answers["/file"] = lambda: answers.pop(0)
    fetch(remote(server), tmp_path / "file", progress)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert progress.notes[0] == "the server answered 503; trying again"


@pytest.mark.parametrize(
    ("answer", "message", "requests"),
    [
        (lambda: (403, {}, b""), "status 403", 1),
        (lambda: (404, {}, b""), "status 404", 1),
        (lambda: (500, {}, b""), "the server answered 500", 5),
    ],
)
def test_a_refusing_server(
    answer: Callable[[], Answer],
    message: str,
    requests: int,
    server: LoopbackServer,
    tmp_path: Path,
    progress: Recorder,
) -> None:
    server.answers["/file"] = answer
    with pytest.raises(DownloadFailed, match=message):
        fetch(remote(server), tmp_path / "file", progress)
    assert len(server.requests) == requests


def test_another_range_than_asked(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    part_of(tmp_path / "file").write_bytes(CONTENT[:10])
    server.answers["/file"] = lambda: (206, {"Content-Range": "bytes 5-9/10"}, b"12345")
    with pytest.raises(DownloadFailed, match="another range than the one asked for"):
        fetch(remote(server), tmp_path / "file", progress)


@pytest.mark.parametrize(
    ("url", "message"),
    [("ftp://127.0.0.1/x", "not an http"), ("http://h:x", "not an address"), ("/x", "not an http")],
)
def test_no_address(url: str, message: str, tmp_path: Path, progress: Recorder) -> None:
    with pytest.raises(DownloadFailed, match=message):
        fetch(Remote(url, 1, ""), tmp_path / "file", progress)


def test_nobody_answers(server: LoopbackServer, tmp_path: Path, progress: Recorder) -> None:
    # Port 9 is discard: nothing listens there.
    with pytest.raises(DownloadFailed, match="could not be fetched"):
        fetch(Remote("http://127.0.0.1:9/x", 1, ""), tmp_path / "file", progress)
    assert len(progress.notes) == 4


def test_a_disk_with_too_little_room(
    server: LoopbackServer, tmp_path: Path, progress: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 5

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(CacheUnusable, match=rf"needs {len(CONTENT)} more bytes.*has 5 free"):
        fetch(remote(server), tmp_path / "file", progress)
    assert not server.requests


def test_a_disk_that_fills_up(
    server: LoopbackServer, tmp_path: Path, progress: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Recorder, "advance", lambda self, count: advance(count))
    with pytest.raises(CacheUnusable, match=r"the disk of .*file\.part is full"):
        fetch(remote(server), tmp_path / "file", progress)


def test_a_directory_that_cannot_be_made(
    server: LoopbackServer, tmp_path: Path, progress: Recorder
) -> None:
    (tmp_path / "cache").write_text("a file where a directory should be")
    with pytest.raises(CacheUnusable, match=r"cannot be written.*set CALDRIX_CACHE"):
        fetch(remote(server), tmp_path / "cache" / "file", progress)


def _fetch_silently(wanted: Remote, path: Path) -> None:
    with new_client() as client:
        download.download(client, wanted, path, SILENT)


def test_two_processes_fetch_once(server: LoopbackServer, tmp_path: Path) -> None:
    wanted, path = remote(server), tmp_path / "file"
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_fetch_silently, args=(wanted, path)) for _ in range(2)]
    with cache.locked(path, SILENT):
        for process in others:
            process.start()
    for process in others:
        process.join()
    assert [process.exitcode for process in others] == [0, 0]
    assert path.read_bytes() == CONTENT
    assert server.requests == [("GET", "/file", None)]


def test_who_waits_says_so(server: LoopbackServer, tmp_path: Path, progress: Recorder) -> None:
    path = tmp_path / "file"
    held = FileLock(path.with_name("file.lock"))
    held.acquire()

    class Releasing(Recorder):
        def note(self, text: str) -> None:
            super().note(text)
            path.write_bytes(CONTENT)
            held.release()

    watching = Releasing()
    fetch(remote(server), path, watching)
    assert watching.notes == ["waiting for another process that fetches file"]
    assert not server.requests
