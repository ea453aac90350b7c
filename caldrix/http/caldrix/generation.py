"""What both endpoints share: from a prompt and its settings to a whole answer or a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import structlog
from attrs import evolve, frozen

from caldrix.engine.engine import GenerationRequest
from caldrix.engine.errors import EngineFailed
from caldrix.errors import CaldrixError
from caldrix.http.caldrix.requests import AnswerFields
from caldrix.http.caldrix.responses import Envelope, Shape
from caldrix.http.encoding import encode_json
from caldrix.http.errors import api_error
from caldrix.http.exchange import Answer, EventStream
from caldrix.http.images import PlacedImage
from caldrix.http.service import Service
from caldrix.http.sse import encode_event
from caldrix.http.watch import RequestWatch, TokenCounts
from caldrix.models.lane import Features, LaneError, LaneLost
from caldrix.text.assembler import TextAssembler

_log = structlog.get_logger(__name__)

ID_HEADER = "x-request-id"
"""Where the OpenAI SDK looks for it."""


@frozen
class Piece:
    """Some text, and the tokens that came since the last piece."""

    text: str
    token_ids: tuple[int, ...]


@frozen
class Ending:
    """The end of an answer, and the tokens that came since the last piece."""

    finish_reason: str
    counts: TokenCounts
    token_ids: tuple[int, ...]


Part = Piece | Ending
Parts = AsyncGenerator[Sequence[Part], None]


async def answer(
    service: Service,
    request: AnswerFields,
    prompt: tuple[int, ...],
    *,
    shape: Shape,
    prompt_field: str,
    watch: RequestWatch,
    images: list[PlacedImage] | None = None,
) -> Answer | EventStream:
    """The answer to ``request``, whose ``prompt_field`` became ``prompt`` with ``images`` in it.

    The list of images is empty once they have been seen.

    Raises ApiError with the status of whatever went wrong; the events of a stream do so, too.
    """
    envelope = Envelope(shape, service.next_number(), int(time.time()), service.served_name)
    generation_request = GenerationRequest(
        prompt,
        max_tokens=request.most_tokens,
        sampling=request.sampling(service.sampling),
        end_tokens=frozenset() if request.ignore_eos else service.tokenizer.end_ids,
        name=envelope.id,
    )
    assembler = TextAssembler(service.tokenizer, request.stop)
    parts = _generate(
        service, generation_request, images or [], assembler, prompt_field, envelope.id, watch
    )
    if request.stream:
        return EventStream(_events(parts, envelope, request, watch), {ID_HEADER: envelope.id})
    return await _whole(parts, envelope, request)


async def _whole(parts: Parts, envelope: Envelope, request: AnswerFields) -> Answer:
    texts: list[str] = []
    token_ids: list[int] = []
    async with aclosing(parts):
        async for together in parts:
            for part in together:
                token_ids.extend(part.token_ids)
                if isinstance(part, Piece):
                    texts.append(part.text)
    # The last part is the only Ending; without one an error was raised.
    assert isinstance(part, Ending)
    ids = token_ids if request.return_token_ids else None
    body = envelope.whole("".join(texts), part.finish_reason, part.counts, ids)
    return Answer(encode_json(body), headers={ID_HEADER: envelope.id})


async def _events(
    parts: Parts, envelope: Envelope, request: AnswerFields, watch: RequestWatch
) -> AsyncGenerator[bytes, None]:
    encode = _encoder(envelope, request)
    async with aclosing(parts):
        async for together in parts:
            if together:
                events = b"".join(map(encode, together))
                if watch.finish_reason is not None:
                    # Before it is sent: whoever has read it finds the record.
                    watch.end(200)
                yield events
    yield encode_event("[DONE]")


def _encoder(envelope: Envelope, request: AnswerFields) -> Callable[[Part], bytes]:
    """What makes the events of an answer's part."""
    text_event = envelope.text_event()

    def encode(part: Part) -> bytes:
        ids = part.token_ids if request.return_token_ids else None
        if isinstance(part, Piece):
            if ids is None:
                return text_event.encode(part.text)
            return encode_event(encode_json(envelope.chunk(part.text, None, ids)))
        event = encode_event(encode_json(envelope.chunk("", part.finish_reason, ids)))
        if request.include_usage:
            event += encode_event(encode_json(envelope.usage_chunk(part.counts)))
        return event

    return encode


async def _generate(
    service: Service,
    request: GenerationRequest,
    images: list[PlacedImage],
    assembler: TextAssembler,
    prompt_field: str,
    answer_id: str,
    watch: RequestWatch,
) -> Parts:
    """The answer's parts, pieces with text in them and last an ending, as many as are there."""
    pending: list[int] = []

    def take_pending() -> tuple[int, ...]:
        taken = tuple(pending)
        pending.clear()
        return taken

    try:
        if images:
            request = evolve(request, features=await _see(service, images, request))
            # They are large, and an answer may take long.
            images.clear()
        async with service.engine.submit(request) as generation:
            watch.begin(answer_id, request, generation)
            while not assembler.stopped and (tokens := await generation.take()):
                pieces: list[Piece] = []
                for token in tokens:
                    watch.tokens.append(token)
                    pending.append(token)
                    text = assembler.push(token)
                    if text:
                        pieces.append(Piece(text, take_pending()))
                    if assembler.stopped:
                        break
                yield pieces
    except CaldrixError as error:
        raise api_error(error, param=prompt_field) from error
    if tail := assembler.finish():
        yield [Piece(tail, take_pending())]
    if assembler.stopped:
        finish_reason = "stop"
    else:
        assert generation.finish_reason is not None
        finish_reason = generation.finish_reason.value
    counts = watch.finish(finish_reason, ran_out=not assembler.stopped)
    yield [Ending(finish_reason, counts, take_pending())]


async def _see(
    service: Service, images: Sequence[PlacedImage], request: GenerationRequest
) -> Features:
    """What stands for the images in the prompt.

    Raises what `ImageReader.features` does, QueueFull if the engine's queue is full already, and
    EngineUnavailable where the engine ends meanwhile.
    """
    assert service.images is not None
    # It may be full by the time they are seen; but to see them for nothing is a waste.
    service.engine.check_room()
    try:
        return await service.images.features(
            images, request.prompt, check=service.engine.check_available
        )
    except LaneLost as error:
        # The engine computes on the same lane, and would find out with its next step.
        _log.exception("engine_failed", requests=[request.name])
        service.engine.fail()
        raise EngineFailed from error
    except LaneError as error:
        _log.exception("images_failed", requests=[request.name])
        raise EngineFailed from error
