"""Files of machine code: a line that names the function and vouches for the rest, then the code."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

_MAGIC = b"caldrix-kernel"


def write_object(path: Path, symbol: str, code: bytes) -> None:
    """Writes a file whole or not at all, so that a reader never sees a part of it."""
    digest = hashlib.sha256(code).hexdigest().encode()
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b" ".join((_MAGIC, symbol.encode(), digest)) + b"\n" + code)
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


def read_object(path: Path) -> tuple[str, bytes] | None:
    """The function's symbol and the code; None where there is no such file, or a damaged one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    line, _, code = content.partition(b"\n")
    match line.split(b" "):
        case [magic, symbol, digest] if magic == _MAGIC:
            if hashlib.sha256(code).hexdigest().encode() == digest:
                return symbol.decode(), code
    return None
