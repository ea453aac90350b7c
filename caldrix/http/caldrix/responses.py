"""The answers' JSON: whole ones, chunks of streams, and what the two endpoints call each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import asdict, frozen

from caldrix.http.encoding import encode_json
from caldrix.http.records import Speculative
from caldrix.http.sse import encode_event
from caldrix.http.watch import TokenCounts

Json = Mapping[str, object]


@frozen
class Shape:
    """How an endpoint lays out its answers."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    whole_content: Callable[[str], Json]
    """The part of a whole answer's choice that holds the text."""
    chunk_content: Callable[[str], Json]
    """The same of a chunk's; of the last chunk with an empty text."""


CHAT = Shape(
    id_prefix="chatcmpl-",
    whole_object="chat.completion",
    chunk_object="chat.completion.chunk",
    whole_content=lambda text: {"message": {"content": text, "role": "assistant"}},
    chunk_content=lambda text: {"delta": {"content": text} if text else {}},
)
TEXT = Shape(
    id_prefix="cmpl-",
    whole_object="text_completion",
    chunk_object="text_completion",
    whole_content=lambda text: {"text": text},
    chunk_content=lambda text: {"text": text},
)


_MARK = "\0"
"""Stands for a text; nothing that comes before it in a chunk is written like it."""


@frozen
class TextEvent:
    """A chunk's event around its text, which alone differs from chunk to chunk."""

    before: bytes
    after: bytes

    def encode(self, text: str) -> bytes:
        """The event's bytes."""
        return self.before + encode_json(text) + self.after


@frozen
class Envelope:
    """What every object of one answer carries: its id, its time (seconds since 1970), its model."""

    shape: Shape
    number: int
    created: int
    model: str

    @property
    def id(self) -> str:
        """The answer's id."""
        return f"{self.shape.id_prefix}{self.number}"

    def whole(
        self, text: str, finish_reason: str, counts: TokenCounts, token_ids: Sequence[int] | None
    ) -> Json:
        """The answer that is not streamed; ``token_ids`` of None leaves them out."""
        choice = {
            "finish_reason": finish_reason,
            "index": 0,
            **self.shape.whole_content(text),
            **_optional_ids(token_ids),
        }
        return {
            **self._frame(self.shape.whole_object),
            "choices": [choice],
            "usage": _usage(counts),
        }

    def chunk(self, text: str, finish_reason: str | None, token_ids: Sequence[int] | None) -> Json:
        """A chunk of a stream: some text, or none and the reason of the end."""
        choice = {
            "finish_reason": finish_reason,
            "index": 0,
            **self.shape.chunk_content(text),
        }
        return {
            **self._frame(self.shape.chunk_object),
            "choices": [choice],
            **_optional_ids(token_ids),
        }

    def text_event(self) -> TextEvent:
        """The events of chunks that hold text and nothing else."""
        event = encode_event(encode_json(self.chunk(_MARK, None, None)))
        before, _, after = event.partition(encode_json(_MARK))
        return TextEvent(before, after)

    def usage_chunk(self, counts: TokenCounts) -> Json:
        """The chunk after the last, for those who asked for it."""
        return {
            **self._frame(self.shape.chunk_object),
            "choices": [],
            "usage": _usage(counts),
        }

    def _frame(self, name: str) -> Json:
        return {
            "created": self.created,
            "id": self.id,
            "model": self.model,
            "object": name,
        }


def _usage(counts: TokenCounts) -> Json:
    """The ``usage`` object."""
    speculative = Speculative.of(counts)
    return {
        "completion_tokens": counts.completion,
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.completion + counts.prompt,
        **({} if speculative is None else {"speculative": asdict(speculative)}),
    }


def _optional_ids(token_ids: Sequence[int] | None) -> Json:
    return {} if token_ids is None else {"token_ids": list(token_ids)}
