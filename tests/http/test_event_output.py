"""Events and comments on their way out, against a clock that jumps and a client that takes time."""

from __future__ import annotations

import trio
import trio.testing
from hypercorn.typing import ASGISendEvent
from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.event_output import event_output
from caldrix.http.sse import COMMENT

SILENCE = 10.0
TIMES = st.floats(0, 35).map(lambda seconds: round(seconds, 1))


class Recorder:
    """Takes messages, each for some time, and notes when it had them."""

    def __init__(self, durations: list[float]) -> None:
        self.sent: list[tuple[float, float, bytes]] = []
        """When it began and ended, and what: nothing for the head."""
        self._durations = durations
        self._busy = False

    async def __call__(self, message: ASGISendEvent) -> None:
        assert not self._busy, "two at a time"
        self._busy = True
        begun = trio.current_time()
        await trio.sleep(self._durations.pop() if self._durations else 0)
        self._busy = False
        if message["type"] == "http.response.body":
            self.sent.append((begun, trio.current_time(), message["body"]))
        else:
            assert message["type"] == "http.response.start"
            self.sent.append((begun, trio.current_time(), b""))


@given(pauses=st.lists(TIMES, max_size=6), last_pause=TIMES, durations=st.lists(TIMES, max_size=8))
def test_comments_fill_silences_and_never_get_in_the_way(
    pauses: list[float], last_pause: float, durations: list[float]
) -> None:
    recorder = Recorder(list(durations))
    events = [b"data: %d\n\n" % number for number in range(len(pauses))]

    async def send_all() -> float:
        async with event_output(recorder, headers={}, silence=SILENCE) as output:
            for pause, event in zip(pauses, events, strict=True):
                await trio.sleep(pause)
                await output.send(event)
            await trio.sleep(last_pause)
        return trio.current_time()

    finished = trio.run(send_all, clock=trio.testing.MockClock(autojump_threshold=0))
    bodies = [body for _, _, body in recorder.sent]
    # The head once and first, the events all and in order, nothing half sent at the end.
    assert not recorder._busy
    assert bodies.count(b"") == min(1, len(bodies))
    assert not bodies or bodies[0] == b""
    assert [body for body in bodies if body.startswith(b"data")] == events
    # A comment after a silence and only then: not sooner, and not later.
    last = 0.0
    for start, end, body in _with_head(recorder.sent):
        assert start - last < SILENCE + 0.001
        if body == COMMENT:
            assert start - last > SILENCE - 0.001
        last = end
    assert finished - last < SILENCE + 0.001


def _with_head(sent: list[tuple[float, float, bytes]]) -> list[tuple[float, float, bytes]]:
    """The same, the head as a part of what it was sent with."""
    if not sent:
        return []
    (start, _, _), (_, end, body), *others = sent
    return [(start, end, body), *others]
