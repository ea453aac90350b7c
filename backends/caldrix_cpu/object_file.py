"""Files of machine code: a line that vouches for the rest, the function's name, then the code."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

_MAGIC = b"caldrix-kernel"


def write_object(path: Path, symbol: str, code: bytes) -> None:
    """Writes a file whole or not at all, so that a reader never sees a part of it."""
    content = symbol.encode() + b"\n" + code
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            file.write(_MAGIC + b" " + _digest(content) + b"\n" + content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read_object(path: Path) -> tuple[str, bytes] | None:
    """The function's symbol and the code; None where there is no such file, or a damaged one."""
    try:
        line, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if line.split(b" ") != [_MAGIC, _digest(content)]:
        return None
    symbol, _, code = content.partition(b"\n")
    return symbol.decode(), code


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
