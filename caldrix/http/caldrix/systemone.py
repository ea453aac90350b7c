"""POST /v1/systemone: typed questions about a state, answered with probabilities.

Each question is a prompt, and its answer is read from the logits that follow. They take their turns
in the engine's queue one at a time, so that other requests can come between; whatever ends the
request, be it a full queue or a client that left, ends the rest of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio
from attrs import frozen

from caldrix.decisions.answers import Answer as Decision
from caldrix.decisions.answers import answer, probabilities
from caldrix.decisions.questions import Question
from caldrix.decisions.values import written
from caldrix.decisions.zero_shot import Prompt, ZeroShot
from caldrix.engine.engine import ReadingRequest
from caldrix.errors import CaldrixError
from caldrix.http.body import format_path, parse_object
from caldrix.http.caldrix.generation import ID_HEADER
from caldrix.http.caldrix.systemone_requests import read_decision_request
from caldrix.http.caldrix.systemone_responses import encode_decisions
from caldrix.http.errors import ApiError, api_error
from caldrix.http.exchange import Answer, Incoming
from caldrix.http.service import Service

_FINISHED = "stop"
"""Of a request whose questions all are answered, as of a generation that ended by itself."""


@frozen
class _Asked:
    """A question, and the prompt that it became."""

    question: Question
    prompt: Prompt


async def create(service: Service, incoming: Incoming) -> Answer:
    """Answers the questions. Raises ApiError."""
    asked = await trio.to_thread.run_sync(_read, service, incoming, limiter=service.text_threads)
    answer_id = f"systemone-{service.next_number()}"
    answers: dict[str, tuple[Question, Decision]] = {}
    for name, one in asked.items():
        request = ReadingRequest(one.prompt.tokens, one.prompt.label_ids, name=answer_id)
        async with service.engine.read(request) as reading:
            incoming.watch.begin_reading(answer_id, reading)
            found = probabilities(await reading.logits())
        answers[name] = one.question, answer(one.question, found)
    counts = incoming.watch.finish(_FINISHED, ran_out=False)
    body = encode_decisions(service.served_name, answers, counts.prompt)
    return Answer(body, headers={ID_HEADER: answer_id})


def _read(service: Service, incoming: Incoming) -> Mapping[str, _Asked]:
    """The questions by their names, all of them checked."""
    body = parse_object(incoming.content_type, incoming.body)
    if service.engine.rows > 1:
        raise ApiError(400, "/v1/systemone needs --max-batch 1")
    try:
        reading = ZeroShot.of(service.template, service.tokenizer, service.vocab_size)
    except CaldrixError as error:
        raise api_error(error) from error
    request = read_decision_request(body, served_name=service.served_name)
    state = written(request.state)
    return {
        name: _Asked(question, _prompt(service, reading, state, name, question))
        for name, question in request.questions.items()
    }


def _prompt(
    service: Service, reading: ZeroShot, state: str, name: str, question: Question
) -> Prompt:
    """The prompt of a question, which the engine would take."""
    # Many long prompts take a while, for which a client may not stay.
    trio.from_thread.check_cancelled()
    place = format_path(("questions", name))
    try:
        prompt = reading.prompt(state, question)
        if not prompt.tokens:
            raise ApiError(400, "the question is an empty prompt", param=place)
        service.engine.check_prompt(prompt.tokens)
    except CaldrixError as error:
        raise api_error(error, param=place) from error
    return prompt
