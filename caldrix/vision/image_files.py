"""Images from the disk, under the same limits as those of requests."""

from __future__ import annotations

from pathlib import Path

from caldrix.files import read_bytes
from caldrix.vision.errors import InvalidImage
from caldrix.vision.parts import MAX_FILE_BYTES, Detail, EncodedImage, read_image_bytes


def read_image_file(path: Path, detail: Detail) -> EncodedImage:
    """The image in a file, of the type that its first bytes tell; no pixel is decoded.

    A path may begin with ``~``. Raises InvalidImage, which names the path.
    """
    data = read_bytes(
        _from_home(path), refusal=InvalidImage, remedy="name another file", limit=MAX_FILE_BYTES
    )
    try:
        return read_image_bytes(data, detail)
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def _from_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        # No user of that name: the file itself may be called so.
        return path
