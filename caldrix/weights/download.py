"""A resumable download of one file whose size and SHA-256 are known beforehand.

The bytes so far lie in a .part file beside the destination; a later try goes on from its end. The
whole is checked before it gets its name, and a part that proves corrupt is thrown away.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx2
from attrs import frozen

from caldrix.weights.cache import (
    cache_errors,
    is_whole,
    locked,
    put_in_place,
    require_space,
    sha256_of,
)
from caldrix.weights.errors import DownloadFailed
from caldrix.weights.progress import Progress

# Consecutive tries that bring nothing, before giving up.
_TRIES = 5
_FIRST_PAUSE_S = 0.5
_TIMEOUT_S = 30.0
_RETRIED = frozenset({408, 416, 425, 429, 500, 502, 503, 504})


@frozen
class Remote:
    """A file to fetch, and what must arrive. ``sha256`` is in hexadecimal."""

    url: str
    size: int
    sha256: str


def new_client() -> httpx2.Client:
    """A client that follows redirects and takes proxies and certificates from the environment."""
    return httpx2.Client(
        follow_redirects=True,
        timeout=_TIMEOUT_S,
        # A compressed answer could neither be resumed nor counted.
        headers={"User-Agent": "caldrix", "Accept-Encoding": "identity"},
    )


def download(client: httpx2.Client, remote: Remote, path: Path, progress: Progress) -> None:
    """Fetch ``remote`` into ``path``, unless it is there already.

    Safe against other processes that fetch the same. Raises DownloadFailed when the server refuses,
    stays silent, or sends other bytes than announced; CacheUnusable when they cannot be stored.
    """
    with locked(path, progress):
        if is_whole(path, remote.size):
            return
        part = path.with_name(f"{path.name}.part")
        resumed = part.exists()
        _fill(client, remote, part, progress)
        if resumed and not _is_intact(remote, part):
            progress.note(f"{part.name} was corrupt; fetching it from the start")
            _discard(part)
            _fill(client, remote, part, progress)
        if not _is_intact(remote, part):
            _discard(part)
            raise DownloadFailed(
                f"what {remote.url} sent does not have the announced sha256 {remote.sha256}; "
                "it was thrown away; try again or ask who runs the server"
            )
        put_in_place(part, path)


def _is_intact(remote: Remote, part: Path) -> bool:
    with cache_errors(part):
        return sha256_of(part) == remote.sha256


def _discard(part: Path) -> None:
    with cache_errors(part):
        part.unlink(missing_ok=True)


def _size(part: Path) -> int:
    with cache_errors(part):
        return part.stat().st_size if part.exists() else 0


def _fill(client: httpx2.Client, remote: Remote, part: Path, progress: Progress) -> None:
    """Bring ``part`` to the announced size, going on after each broken connection."""
    if _size(part) > remote.size:
        _discard(part)
    require_space(part.parent, remote.size - _size(part))
    idle_tries = 0
    while (have := _size(part)) < remote.size:
        problem = _fetch_once(client, remote, part, progress)
        if problem is None:
            continue
        idle_tries = 0 if _size(part) > have else idle_tries + 1
        if idle_tries == _TRIES:
            raise DownloadFailed(
                f"{remote.url} could not be fetched: {problem}; "
                f"a new try goes on from the {_size(part)} of {remote.size} bytes that are here"
            )
        progress.note(f"{problem}; trying again")
        time.sleep(_FIRST_PAUSE_S * 2**idle_tries)


def _fetch_once(
    client: httpx2.Client, remote: Remote, part: Path, progress: Progress
) -> str | None:
    """Append what one request brings. What went wrong, if another try may go better."""
    have = _size(part)
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with client.stream("GET", remote.url, headers=headers) as response:
            if response.status_code in _RETRIED:
                if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:
                    _discard(part)
                return f"the server answered {response.status_code}"
            start = _start(response, remote, have)
            progress.begin(part.name.removesuffix(".part"), remote.size, start)
            _append(response, remote, part, start, progress)
    except httpx2.InvalidURL as error:
        raise DownloadFailed(f"{remote.url} is not an address: {error}") from error
    except httpx2.UnsupportedProtocol as error:
        raise DownloadFailed(f"{remote.url} is not an http or https address") from error
    except httpx2.HTTPError as error:
        return str(error) or type(error).__name__
    return None if _size(part) == remote.size else "the connection ended early"


def _start(response: httpx2.Response, remote: Remote, have: int) -> int:
    """Where in the file the response's first byte belongs."""
    if response.status_code == httpx2.codes.OK:
        return 0
    if response.status_code != httpx2.codes.PARTIAL_CONTENT or not have:
        raise DownloadFailed(f"{remote.url} could not be fetched: status {response.status_code}")
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != have:
        raise DownloadFailed(f"{remote.url} answered another range than the one asked for")
    return have


def _append(
    response: httpx2.Response, remote: Remote, part: Path, start: int, progress: Progress
) -> None:
    at = start
    with cache_errors(part), part.open("ab" if start else "wb") as file:
        # Chunks as they arrive: gathering them would lose the last when a connection breaks.
        for chunk in response.iter_raw():
            at += len(chunk)
            if at > remote.size:
                raise DownloadFailed(
                    f"{remote.url} sends more than the announced {remote.size} bytes"
                )
            file.write(chunk)
            progress.advance(len(chunk))
