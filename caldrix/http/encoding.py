"""JSON as this server writes it: compact, keys sorted at every level, UTF-8 as it is."""

from __future__ import annotations

import json

_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
)


def encode_json(value: object) -> bytes:
    """The bytes of ``value``. Raises ValueError for a number that is not finite."""
    return _ENCODER.encode(value).encode()
