"""Errors as clients see them: a status and the OpenAI error object.

Routes raise `ApiError`, or let an error of the layers below escape; `api_error` gives each of those
its status. Every answer of the server that is not a success has the body that `error_body` makes.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from caldrix.decisions.errors import OutOfLimits, StateTooLong, UnfitModel, UnusableReading
from caldrix.engine.errors import (
    EngineFailed,
    EngineUnavailable,
    PromptTooLong,
    QueueFull,
    UnknownToken,
)
from caldrix.errors import CaldrixError
from caldrix.http.config import MEBIBYTE
from caldrix.http.encoding import encode_json
from caldrix.text.errors import InvalidText, TemplateError
from caldrix.vision.errors import InvalidImage, PlaceholderCount, TooManyImages

_log = structlog.get_logger(__name__)

_STATUSES: Mapping[type[CaldrixError], int] = {
    PromptTooLong: 400,
    UnknownToken: 400,
    TemplateError: 400,
    InvalidText: 400,
    InvalidImage: 400,
    TooManyImages: 400,
    PlaceholderCount: 400,
    UnfitModel: 400,
    OutOfLimits: 400,
    StateTooLong: 400,
    QueueFull: 429,
    EngineFailed: 500,
    UnusableReading: 500,
    EngineUnavailable: 503,
}


class ApiError(CaldrixError):
    """A request's failure, as the client is told: status, message, and the field at fault.

    ``headers`` are sent with the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        type: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.type = _default_type(status) if type is None else type
        self.code = code
        self.headers: Mapping[str, str] = {} if headers is None else headers


def api_error(error: CaldrixError, *, param: str | None = None) -> ApiError:
    """How a client is told of ``error``; ``param`` is the field it concerns if it is the client's.

    An error without a status of its own is a 500 that says nothing of what happened inside; the log
    does.
    """
    if isinstance(error, ApiError):
        return error
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return ApiError(status, str(error), param=param if status == 400 else None)
    _log.error("request_failed", exc_info=error)
    return internal_error()


def body_too_large(most: int) -> ApiError:
    """The 413 for a body of over ``most`` bytes, as it comes or as it decodes."""
    return ApiError(413, f"the request body is over {most / MEBIBYTE:g} MiB")


def internal_error() -> ApiError:
    """The 500 for a failure nobody foresaw; its cause is in the log."""
    return ApiError(500, "the server failed on this request; its log says why")


def error_body(error: ApiError) -> bytes:
    """The error object: ``{"error": {"code", "message", "param", "type"}}``."""
    return encode_json(
        {
            "error": {
                "code": error.code,
                "message": error.message,
                "param": error.param,
                "type": error.type,
            }
        }
    )


def _default_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
