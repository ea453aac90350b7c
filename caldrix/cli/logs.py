"""The server's log: structured lines on stderr, for a person or for a machine.

What a request said never gets there. So tracebacks are written without the values of variables,
which would show it.
"""

from __future__ import annotations

import io
import logging
import sys
from contextlib import suppress
from typing import Literal, TextIO, cast

import structlog
from structlog.typing import Processor

LogFormat = Literal["text", "json"]
LogLevel = Literal["info", "warning", "error"]


def configure_logging(log_format: LogFormat, *, level: LogLevel = "info") -> None:
    """Sends the log to stderr from ``level`` up, as text or as a JSON object a line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=log_format == "json"),
            *_rendering(log_format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Lossy(sys.stderr))),
        cache_logger_on_first_use=False,
    )


class _Lossy(io.TextIOBase):
    """All that a logger needs of a stream; lines are lost while it can't be written.

    Its disk may be full, or its reader gone: no request may end for want of a line in the log.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _rendering(log_format: LogFormat) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
