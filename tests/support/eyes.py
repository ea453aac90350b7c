"""A model with eyes: its tokenizer, and images whose way is counted and can be held up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import trio
from attrs import define, field, frozen
from PIL import Image

from caldrix.http.images import ImageReader
from caldrix.models.lane import Slice
from caldrix.vision.layout import AROUND_IMAGE, WHOLE_IMAGE, ImageLayout
from caldrix.vision.parts import PLACEHOLDER, EncodedImage
from caldrix.vision.preprocessing import Pixels
from caldrix.vision.processor import ImageProcessor
from caldrix.vision.settings import ProcessorSettings
from caldrix.weights.tensor import Float32
from tests.support import miniature
from tests.support.image_files import saved, url
from tests.support.scripted import ScriptedExecutor, reply

TOKENIZER = miniature.tokenizer(PLACEHOLDER, AROUND_IMAGE, WHOLE_IMAGE)
SIDE = 32
TOKENS_PER_TILE = 4
WIDTH = 8
SETTINGS = ProcessorSettings(
    tile_side=SIDE,
    longest_edge=4 * SIDE,
    resample=Image.Resampling.LANCZOS,
    rescale_factor=1 / 255,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    tokens_per_tile=TOKENS_PER_TILE,
)
_GATE_TIMEOUT = 15.0


class LookingExecutor(ScriptedExecutor):
    """Answers "ok" to everything, and notes the features it was given."""

    def __init__(self) -> None:
        super().__init__(
            reply(miniature.ids("ok"), miniature.end_id()), vocab_size=TOKENIZER.vocab_size
        )
        self.features: list[Float32] = []

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.features += [item.features.rows for item in slices if item.features is not None]
        return super().step(slices)


@frozen
class _Processor(ImageProcessor):
    eyes: Eyes

    def tiles(self, image: EncodedImage) -> Iterator[Pixels]:
        with self.eyes.decoding():
            return super().tiles(image)


@define(eq=False)
class Eyes:
    """Counts images and tiles, holds them up while a gate is clear, and sees their brightness."""

    decoder_gate: threading.Event = field(factory=threading.Event)
    tower_gate: threading.Event = field(factory=threading.Event)
    fault: Exception | None = None
    """What the tower raises."""
    decoded: int = 0
    """Images that a decoder was given."""
    seen: int = 0
    """Tiles that the tower was given."""
    at_once: int = 0
    """Images that are being decoded."""
    most_at_once: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self.decoder_gate.set()
        self.tower_gate.set()

    def reader(
        self, *, queue_depth: int = 64, settings: ProcessorSettings = SETTINGS
    ) -> ImageReader:
        """What a server has for these eyes."""
        layout = ImageLayout.for_tokenizer(TOKENIZER, settings.tokens_per_tile)
        return ImageReader(_Processor(settings, layout, self), self._see, queue_depth)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """An image is being decoded."""
        with self._lock:
            self.decoded += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            assert self.decoder_gate.wait(_GATE_TIMEOUT), "a test left the gate closed"
            yield
        finally:
            with self._lock:
                self.at_once -= 1

    def _see(self, tile: Pixels) -> Float32:
        with self._lock:
            self.seen += 1
        assert self.tower_gate.wait(_GATE_TIMEOUT), "a test left the gate closed"
        if self.fault is not None:
            raise self.fault
        return np.full((TOKENS_PER_TILE, WIDTH), tile.mean(), np.float32)

    async def until(self, reached: Callable[[Eyes], bool]) -> None:
        """Returns once it has come to that; an error if it does not."""
        with trio.fail_after(5):
            while not reached(self):  # noqa: ASYNC110  # threads tell no event
                await trio.sleep(0.002)


def text(words: str) -> Mapping[str, object]:
    """A text part."""
    return {"type": "text", "text": words}


@cache
def grey(level: int, width: int = SIDE, height: int = SIDE) -> str:
    """The data URL of a picture in one grey."""
    return url(saved(Image.new("L", (width, height), level), "PNG"))


def picture(image_url: str | None = None, **others: object) -> Mapping[str, object]:
    """An image part: a grey picture of one tile at low detail if no URL is given."""
    others = {"detail": "low"} | others
    return {"type": "image_url", "image_url": {"url": image_url or grey(128), **others}}


def broken_picture() -> Mapping[str, object]:
    """An image part whose header is well and whose pixels are not."""
    whole = saved(Image.linear_gradient("L"), "JPEG")
    return picture(url(whole[: -len(whole) // 4], "image/jpeg"))


def user(*parts: Mapping[str, object] | str) -> Mapping[str, object]:
    """A user's message of images and texts."""
    content = [text(part) if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": content}
