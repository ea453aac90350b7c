"""Servers that keep the contract in settings of their own: nothing is held against them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from caldrix_conformance.options import Settings
from caldrix_conformance.run import judge
from caldrix_conformance.verdicts import Status
from tests.mutants.toy.model import Prompt, Sampling
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json, Toy, serving
from tests.mutants.toy.wire import Handler

AREAS = ("chat", "completions", "fields", "sampling", "streaming", "wire", "errors", "server")


class SamplesByItsFlags(Toy):
    """As started with --temperature 0.9 --repetition-penalty 1.3 --top-k 40 --seed 5."""

    def sampling(self, body: Json) -> Sampling:
        own = {"temperature": 0.9, "repetition_penalty": 1.3, "top_k": 40, "seed": 5}
        given = {name: value for name, value in body.items() if value is not None}
        return super().sampling(own | given)


class HasASmallContext(Toy):
    def fit(self, prompt: Prompt, param: str) -> Prompt:
        if prompt.tokens >= 200:
            raise Refused(400, f"{prompt.tokens} tokens, 200 fit", param)
        return prompt


class _Closing(Handler):
    def end_headers(self) -> None:
        self.send_header("Connection", "close")
        super().end_headers()


class ClosesEachConnection(Toy):
    handler = _Closing


class _Old(Handler):
    def send_response_only(self, code: int, message: str | None = None) -> None:
        """In HTTP/1.0, which knows no 100."""
        self.protocol_version = "HTTP/1.1" if code == 100 else "HTTP/1.0"
        super().send_response_only(code, message)
        self.protocol_version = "HTTP/1.1"
        self.close_connection = code != 100

    def stream(self, events: Iterator[str]) -> None:
        self.request_version = "HTTP/1.0"
        super().stream(events)


class SpeaksOldHttp(Toy):
    handler = _Old


OTHERS: dict[type[Toy], Collection[str]] = {
    SamplesByItsFlags: {"sampling.default.greedy", "sampling.default.values"},
    HasASmallContext: {"chat.messages.most", "server.leaving.prefill"},
    ClosesEachConnection: (),
    SpeaksOldHttp: (),
}
"""With the clauses that can't be judged in such a setting."""


@pytest.mark.parametrize("toy", OTHERS, ids=[toy.__name__ for toy in OTHERS])
def test_a_setting_of_its_own_breaks_nothing(toy: type[Toy]) -> None:
    only = [f"{area}.*" for area in AREAS]
    with serving(toy()) as url:
        report = judge(Settings(url=url, only=only))
    assert report is not None
    seen = {verdict.clause.id: verdict for verdict in report.verdicts}
    broken = (Status.FAIL, Status.ERROR)
    assert {name: one.seen for name, one in seen.items() if one.status in broken} == {}
    unjudged = {name for name, one in seen.items() if one.status is Status.UNSUPPORTED}
    lacked = {name for name, one in seen.items() if one.clause.needs & toy.lacks}
    assert unjudged - lacked >= set(OTHERS[toy])
