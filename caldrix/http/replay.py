"""The replay ring: the last requests as token ids, to be run again, in memory only.

An answer that a stop string cut, or that nobody stayed to read, is run again up to the tokens that
came out, so that what is compared is comparable.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest

from attrs import asdict, field, frozen

from caldrix.engine.engine import GenerationRequest
from caldrix.engine.sampling import SamplingSettings
from caldrix.http.watch import RequestWatch

_ID = "i"
"""Token ids as the array module packs them: four bytes each."""


@frozen(kw_only=True)
class Recording:
    """A request and what came out of it, as token ids."""

    id: str
    """The answer's."""
    route: str
    received: float
    """Seconds since 1970."""
    prompt: array[int] = field(repr=False)
    tokens: array[int] = field(repr=False)
    max_tokens: int | None
    """The request's own cap, or as many tokens as came out of an answer that was cut."""
    sampling: SamplingSettings
    """With the seed that was used."""
    end_tokens: frozenset[int]
    finish_reason: str | None

    def to_json(self) -> Mapping[str, object]:
        """What may be told of it: neither ids nor text."""
        return {
            "id": self.id,
            "route": self.route,
            "received": self.received,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.tokens),
            "finish_reason": self.finish_reason,
            "sampling": asdict(self.sampling),
        }

    def request(self) -> GenerationRequest:
        """The request to run again."""
        return GenerationRequest(
            tuple(self.prompt),
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            end_tokens=self.end_tokens,
        )


class ReplayRing:
    """The last ``size`` requests that something came out of."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recordings: dict[str, Recording] = {}

    def __iter__(self) -> Iterator[Recording]:
        """The newest first."""
        return reversed(self._recordings.values())

    def find(self, answer_id: str) -> Recording | None:
        """The recording of the answer with that id, if it is still there."""
        return self._recordings.get(answer_id)

    def keep(self, watch: RequestWatch) -> None:
        """Takes in a request that has ended, and lets go of the oldest if there is no room.

        One that broke off before its first token holds nothing to compare and is passed over, and
        so is one with images: its token ids are not all of it.
        """
        seeing = watch.request is not None and watch.request.features is not None
        if not seeing and (watch.tokens or watch.ran_out):
            recording = _recording(watch)
            self._recordings[recording.id] = recording
        if len(self._recordings) > self._size:
            del self._recordings[next(iter(self._recordings))]


def first_difference(tokens: Iterable[int], others: Iterable[int]) -> int | None:
    """Where the two first differ, be it that one has ended; None if they don't."""
    for index, (token, other) in enumerate(zip_longest(tokens, others)):
        if token != other:
            return index
    return None


def _recording(watch: RequestWatch) -> Recording:
    request, sampling = watch.request, watch.sampling
    assert watch.answer_id is not None
    assert request is not None
    assert sampling is not None
    return Recording(
        id=watch.answer_id,
        route=watch.route,
        received=watch.received,
        prompt=array(_ID, request.prompt),
        tokens=array(_ID, watch.tokens),
        max_tokens=request.max_tokens if watch.ran_out else len(watch.tokens),
        sampling=sampling,
        end_tokens=request.end_tokens,
        finish_reason=watch.finish_reason,
    )
