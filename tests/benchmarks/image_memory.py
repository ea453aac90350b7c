"""Measures what requests of eight of the largest pictures take of memory at the peak.

A server with SmolVLM's own sizes of tiles decodes them, each 4096 pixels a side and the files
together as large as a body may be, in several kinds of file; its tower only looks as if it saw. The
weights of a model and the tower's own buffers come to that once, whatever is sent. It ends with
status 1 where a request, or two at once, take more than the stated bounds.

`just bench-image-memory` runs it.
"""

from __future__ import annotations

import multiprocessing
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import httpx2
import numpy as np
import trio
from attrs import evolve
from PIL import Image
from rich.console import Console
from rich.table import Table

from caldrix.http.config import MEBIBYTE, MOST_BODY_WITH_IMAGES, ServerConfig
from caldrix.http.images import ImageReader
from caldrix.vision.header import MAX_SIDE
from caldrix.vision.layout import ImageLayout
from caldrix.vision.parts import MAX_IMAGES
from caldrix.vision.preprocessing import Pixels
from caldrix.vision.processor import ImageProcessor
from caldrix.weights.tensor import Float32
from tests.benchmarks.script import run_script
from tests.support.eyes import SETTINGS, TOKENIZER, LookingExecutor
from tests.support.image_files import exif, saved
from tests.support.serving import MODEL, serving
from tests.support.tiny_vision_model import TEMPLATE

MOST, MOST_TOGETHER = 400, 700
"""MiB that one request may take, and two at once: no more than two decode."""
_FILE_BYTES = (MOST_BODY_WITH_IMAGES - 65536) // MAX_IMAGES // 4 * 3
_TILE, _TOKENS, _WIDTH = 512, 64, 576
_LONGEST = 300.0


def image_memory() -> int:
    """Measure it, for one request at a time and for two at once."""
    table = Table("picture", "one request, MiB", "two at once, MiB")
    peaks: list[tuple[float, float]] = []
    for kind, (media_type, data) in _pictures().items():
        body = _body(media_type, data)
        with _server() as (process, url):
            alone = _peak(process, url, [body])
            together = _peak(process, url, [body] * 2)
        table.add_row(kind, f"{alone:.0f}", f"{together:.0f}")
        peaks.append((alone, together))
    Console().print(table)
    return int(any(alone > MOST or together > MOST_TOGETHER for alone, together in peaks))


def _pictures() -> Mapping[str, tuple[str, bytes]]:
    """Files of several kinds, filled up to the size that eight may have."""
    ramp = np.linspace(0, 255, MAX_SIDE).astype(np.uint8)
    across = np.tile(ramp, (MAX_SIDE, 1))
    bands = [Image.fromarray(band) for band in (across, across.T, across[:, ::-1], across[::-1])]
    rgb, rgba, cmyk = (Image.merge(mode, bands[: len(mode)]) for mode in ("RGB", "RGBA", "CMYK"))
    deep = Image.fromarray(across.astype(np.uint16) * 257)
    lying = exif(6)
    files = {
        "PNG": ("image/png", saved(rgb, "PNG")),
        "PNG with alpha, lying": ("image/png", saved(rgba, "PNG", exif=lying)),
        "PNG of 16 bits, a level transparent": ("image/png", saved(deep, "PNG", transparency=257)),
        "JPEG": ("image/jpeg", saved(rgb, "JPEG")),
        "JPEG, progressive, lying": (
            "image/jpeg",
            saved(rgb, "JPEG", progressive=True, subsampling=0, exif=lying),
        ),
        "JPEG, progressive, CMYK, lying": (
            "image/jpeg",
            saved(cmyk, "JPEG", progressive=True, subsampling=0, exif=lying),
        ),
        "WebP, lossless, with alpha": ("image/webp", saved(rgba, "WEBP", lossless=True, method=0)),
    }
    return {kind: (media_type, _filled_up(data)) for kind, (media_type, data) in files.items()}


def _filled_up(data: bytes) -> bytes:
    """What follows a file's end is passed over."""
    assert len(data) <= _FILE_BYTES, len(data)
    return data.ljust(_FILE_BYTES, b"\0")


def _body(media_type: str, data: bytes) -> Mapping[str, object]:
    url = f"data:{media_type};base64,{b64encode(data).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"model": MODEL, "messages": [{"role": "user", "content": [part] * MAX_IMAGES}]}


@contextmanager
def _server() -> Iterator[tuple[int, str]]:
    """The number and the address of a server's process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        assert process.pid is not None
        yield process.pid, ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(told: Connection) -> None:
    settings = evolve(SETTINGS, tile_side=_TILE, longest_edge=4 * _TILE, tokens_per_tile=_TOKENS)
    processor = ImageProcessor(settings, ImageLayout.for_tokenizer(TOKENIZER, _TOKENS))

    def see(tile: Pixels) -> Float32:
        return np.full((_TOKENS, _WIDTH), tile.mean(), np.float32)

    async def run() -> None:
        async with serving(
            LookingExecutor(),
            tokenizer=TOKENIZER,
            template=TEMPLATE,
            images=ImageReader(processor, see, queue_depth=64),
            config=ServerConfig(port=0, most_body=MOST_BODY_WITH_IMAGES),
            context=32_768,
        ) as server:
            told.send(server.url)
            await trio.sleep_forever()

    trio.run(run)


def _peak(process: int, url: str, bodies: list[Mapping[str, object]]) -> float:
    """MiB that the process grows by at most while it answers all of these at once."""
    status = Path(f"/proc/{process}/status")
    # 5 forgets the peak so far (man 5 proc_pid_clear_refs).
    Path(f"/proc/{process}/clear_refs").write_text("5")
    before = _kibibytes(status, "VmRSS")

    async def ask(client: httpx2.AsyncClient, body: Mapping[str, object]) -> None:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text

    async def run() -> None:
        async with (
            httpx2.AsyncClient(base_url=url, trust_env=False, timeout=_LONGEST) as client,
            trio.open_nursery() as nursery,
        ):
            for body in bodies:
                nursery.start_soon(ask, client, body)

    trio.run(run)
    return (_kibibytes(status, "VmHWM") - before) / (MEBIBYTE / 1024)


def _kibibytes(status: Path, name: str) -> int:
    lines = (line.split() for line in status.read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == f"{name}:")


if __name__ == "__main__":
    run_script(image_memory, "bench-image-memory")
