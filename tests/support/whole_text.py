"""What streamed text must come to, computed from the whole at once."""

from __future__ import annotations


def first_stop(stream: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the first stop to be completed, the longest of them, and that stop."""
    for end in range(1, len(stream) + 1):
        completed = [stop for stop in stops if stream[:end].endswith(stop)]
        if completed:
            stop = max(completed, key=len)
            return stream[: end - len(stop)], stop
    return stream, None
