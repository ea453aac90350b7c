"""Stop strings in a stream of text: what may be sent now, what must wait, where the text ends.

An Aho-Corasick automaton reads the stream once, in time linear in its length whatever the stops
are (Aho and Corasick, "Efficient string matching", 1975). Its state is the longest tail of the
stream that begins some stop, and exactly that tail is held back: anything before it can never
become part of a stop.

The first stop to be completed ends the text. Where two are completed by the same character the
longer one counts, so that no part of a stop is ever sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field


@define
class _State:
    """A state of the automaton: a prefix of some stop."""

    depth: int
    following: dict[str, _State] = field(factory=dict)
    fallback: _State | None = None
    match: str | None = None


class StopMatcher:
    """Watches a stream for the first of ``stops`` and ends it there.

    ``matched`` is the stop that ended the stream, or None while it runs.

    Raises ``ValueError`` for an empty stop: it would match before the first character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._root = _build(stops)
        self._state = self._root
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take the next ``text``; return what can be sent now, maybe "".

        Once a stop has matched nothing more is taken: raises ``RuntimeError``.
        """
        if self.matched is not None:
            raise RuntimeError("the stream has ended at a stop string")
        if not self._root.following:
            # Without stops nothing is held back.
            return text
        held = len(self._held)
        stream = self._held + text
        for position, character in enumerate(text, start=held + 1):
            self._state = self._advance(character)
            if self._state.match is not None:
                self.matched = self._state.match
                self._held = ""
                return stream[: position - len(self.matched)]
        ready = len(stream) - self._state.depth
        self._held = stream[ready:]
        return stream[:ready]

    def flush(self) -> str:
        """End the stream: return the tail that was held back, "" after a stop."""
        tail, self._held, self._state = self._held, "", self._root
        return tail

    def _advance(self, character: str) -> _State:
        state: _State | None = self._state
        while state is not None:
            if character in state.following:
                return state.following[character]
            state = state.fallback
        return self._root


def _build(stops: Sequence[str]) -> _State:
    """The automaton of ``stops``: its root state."""
    root = _State(depth=0)
    for stop in stops:
        state = root
        for character in stop:
            state = state.following.setdefault(character, _State(depth=state.depth + 1))
        state.match = stop
    # Breadth first: a state's fallback is shallower, so it is complete by then.
    queue = deque(root.following.values())
    for state in queue:
        state.fallback = root
    while queue:
        parent = queue.popleft()
        for character, state in parent.following.items():
            state.fallback = _longest_suffix(parent.fallback, character) or root
            if state.match is None:
                state.match = state.fallback.match
            queue.append(state)
    return root


def _longest_suffix(state: _State | None, character: str) -> _State | None:
    while state is not None:
        if character in state.following:
            return state.following[character]
        state = state.fallback
    return None
