"""`caldrix serve` as a process of its own, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from caldrix.errors import CaldrixError
from tests.support.announced import announced

_DRAIN = 60.0
_EXPECTED = frozenset({"system_message_moved"})
"""Events of a level above info that a load gives rise to."""


class ServerFault(CaldrixError):
    """The server did not start, or did not end as it should."""


@frozen
class ServerProcess:
    """A server that is ready."""

    url: str
    id: int

    @property
    def open_files(self) -> int:
        """Files and connections that it has open."""
        return sum(1 for _ in Path(f"/proc/{self.id}/fd").iterdir())


@contextmanager
def serving(model: Path | str, flags: Sequence[str], log: Path) -> Iterator[ServerProcess]:
    """`caldrix serve` on a free port; it writes its log to ``log``. Raises ServerFault."""
    command = [str(Path(sys.executable).with_name("caldrix")), "serve", str(model), "--port", "0"]
    with log.open("wb") as errors:
        # In a session of its own, so that Ctrl-C ends it by this block and not beside it.
        process = subprocess.Popen(
            [*command, "--log-format", "json", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            url = announced(lines)
            if url is None:
                said = " ".join(log.read_text().split())
                raise ServerFault(f"the server ended before it was ready: {said}")
            yield ServerProcess(url, process.pid)
        finally:
            process.terminate()
            try:
                status = process.wait(_DRAIN)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    if status:
        raise ServerFault(f"the server ended with status {status}")


def noise(log: Path) -> list[str]:
    """The lines of a log that a load is no reason for."""
    return [line for line in log.read_text().splitlines() if not _is_expected(line)]


def _is_expected(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return entry["level"] == "info" or entry["event"] in _EXPECTED
