"""SIGTERM during long work: ended as an exception ends it, so that nothing stays behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_sigterm(*, as_interrupt: bool = False) -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit: child processes end, temporary files go.

    By itself the signal would end this process on the spot, and leave both. ``as_interrupt`` raises
    KeyboardInterrupt instead, within code that keeps SystemExit to itself, as pytest does.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may say what signals do.
        yield
        return
    raises = signal.default_int_handler if as_interrupt else _exit
    before = signal.signal(signal.SIGTERM, raises)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
