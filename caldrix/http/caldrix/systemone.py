"""POST /v1/systemone: typed questions about a state, answered with probabilities.

Each question is a prompt, or several, and its answer is read from the logits that follow. They take
their turns in the engine's queue one at a time, so that other requests can come between; whatever
ends the request, be it a full queue or a client that left, ends the rest of them. What all of them
begin with, the state above all, is kept from the first to the last where the engine has room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import structlog
import trio
from attrs import frozen

from caldrix.decisions.answers import Answer as Decision
from caldrix.decisions.errors import UnusableReading
from caldrix.decisions.questions import Question
from caldrix.decisions.reading import Asked, Format, Prompt, PromptWriter
from caldrix.engine.engine import Kept, ReadingRequest
from caldrix.errors import CaldrixError
from caldrix.http.body import Path, format_path, parse_object, shorten
from caldrix.http.caldrix.generation import ID_HEADER
from caldrix.http.caldrix.systemone_requests import DecisionRequest, read_decision_request
from caldrix.http.caldrix.systemone_responses import encode_decisions
from caldrix.http.errors import ApiError, api_error
from caldrix.http.exchange import Answer, Incoming
from caldrix.http.service import Service
from caldrix.http.watch import RequestWatch
from caldrix.weights.tensor import Float32

_log = structlog.get_logger(__name__)

_FINISHED = "stop"
"""Of a request whose questions all are answered, as of a generation that ended by itself."""

MOST_CONTEXTS = 64
"""How many times the context the prompts of a request may be, all of them together."""


async def create(service: Service, incoming: Incoming) -> Answer:
    """Answers the questions. Raises ApiError."""
    form, questions, asked = await trio.to_thread.run_sync(
        _read, service, incoming, limiter=service.text_threads
    )
    reader = _Reader(service, incoming.watch, form, f"systemone-{service.next_number()}")
    answers: dict[str, tuple[Question, Decision]] = {}
    with _kept(service, asked) as kept:
        for name, question in questions.items():
            prompts = asked.prompts[name]
            logits = [await reader.read(asked.shared, prompt, kept) for prompt in prompts]
            answers[name] = question, reader.answer(name, question, logits)
    counts = incoming.watch.finish(_FINISHED, ran_out=False)
    body = encode_decisions(service.served_name, answers, counts.prompt)
    return Answer(body, headers={ID_HEADER: reader.answer_id})


@frozen(eq=False)
class _Reader:
    """Has prompts read, one after the other."""

    service: Service
    watch: RequestWatch
    form: Format
    answer_id: str

    async def read(self, shared: tuple[int, ...], prompt: Prompt, kept: Kept | None) -> Float32:
        """The logits of a prompt's labels."""
        tokens = (*shared, *prompt.tokens)
        request = ReadingRequest(tokens, prompt.label_ids, name=self.answer_id, kept=kept)
        once = kept is not None and kept.taken and self.form.counts_shared_once
        async with self.service.engine.read(request) as reading:
            self.watch.begin_reading(self.answer_id, reading)
            logits = await reading.logits()
            if once and reading.timeline.cached_tokens >= len(shared):
                self.watch.leave_out(len(shared))
            return logits

    def answer(self, name: str, question: Question, logits: Sequence[Float32]) -> Decision:
        """The answer to a question. Raises UnusableReading, of which the log tells more."""
        try:
            return self.form.answer(question, logits)
        except UnusableReading:
            _log.error("unusable_reading", requests=[self.answer_id], question=shorten(name))
            raise


def _kept(service: Service, asked: Asked) -> AbstractContextManager[Kept | None]:
    """Keeps what several prompts share, for as long as the block lasts."""
    several = sum(map(len, asked.prompts.values())) > 1
    if not several or not asked.shared:
        return nullcontext()
    return service.engine.keep(len(asked.shared))


def _read(service: Service, incoming: Incoming) -> tuple[Format, Mapping[str, Question], Asked]:
    """How the model is asked, the questions by their names, and their prompts; all checked."""
    body = parse_object(incoming.content_type, incoming.body)
    if service.engine.rows > 1:
        raise ApiError(400, "/v1/systemone needs --max-batch 1")
    try:
        form = service.decision_format()
    except CaldrixError as error:
        raise api_error(error) from error
    # Millions of numbers take a while, for which a client may not stay.
    trio.from_thread.check_cancelled()
    request = read_decision_request(body, served_name=service.served_name, limits=form.limits)
    trio.from_thread.check_cancelled()
    return form, request.questions, _ask(service, form, request)


def _ask(service: Service, form: Format, request: DecisionRequest) -> Asked:
    """The prompts of all questions, each of which the engine would take."""
    try:
        writer = form.about(request.state)
        service.engine.check_tokens(writer.shared)
    except CaldrixError as error:
        raise api_error(error, param="state") from error
    prompts: dict[str, tuple[Prompt, ...]] = {}
    count = 0
    for name, question in request.questions.items():
        written = _write(service, writer, question, ("questions", name))
        count += sum(len(writer.shared) + len(prompt.tokens) for prompt in written)
        if count > MOST_CONTEXTS * service.engine.context:
            raise _too_long_together(count, service.engine.context)
        prompts[name] = tuple(written)
    return writer.gather(prompts)


def _write(
    service: Service, writer: PromptWriter, question: Question, place: Path
) -> Sequence[Prompt]:
    """The prompts of a question."""
    written: list[Prompt] = []
    try:
        for prompt in writer.write(question):
            # Many long prompts take a while, for which a client may not stay.
            trio.from_thread.check_cancelled()
            if not prompt.tokens:
                raise ApiError(400, "the question is an empty prompt", param=format_path(place))
            service.engine.check_prompt(prompt.tokens, after=len(writer.shared))
            written.append(prompt)
    except CaldrixError as error:
        raise api_error(error, param=format_path(place)) from error
    return written


def _too_long_together(count: int, context: int) -> ApiError:
    most = MOST_CONTEXTS * context
    return ApiError(
        400,
        f"the prompts of all questions are at least {count} tokens, and {MOST_CONTEXTS} times the "
        f"context of {context} are {most}; ask fewer at a time",
        param="questions",
    )
