"""The records of requests for decisions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import frozen

from caldrix_conformance.contracts.caldrix.decisions import Decisions
from caldrix_conformance.contracts.caldrix.questions import CHOICE, NOUL, SCORE, ask
from caldrix_conformance.contracts.caldrix.records import Record, records_of
from caldrix_conformance.endpoints import SYSTEMONE
from caldrix_conformance.marks import checks
from caldrix_conformance.target import Target


@frozen
class Recorded:
    """A request that was answered, and its records."""

    decisions: Decisions
    records: Sequence[Record]

    @property
    def record(self) -> Record:
        """Its one record, of several the newest."""
        return self.records[0]


@pytest.fixture(scope="session")
def recorded(target: Target) -> Recorded:
    questions = {"choice": CHOICE, "score": SCORE, "noul": NOUL}
    answer, found = records_of(target, SYSTEMONE, lambda: ask(target, questions))
    return Recorded(Decisions(answer), found)


@checks("systemone.record.kept")
def test_one_record(recorded: Recorded) -> None:
    seen = len(recorded.records)
    assert seen == 1, f"{seen} records of one request with three questions"


@checks("systemone.answer.id")
def test_id(recorded: Recorded) -> None:
    seen = recorded.decisions.answer.headers.get("x-request-id")
    wanted = recorded.record.get("id")
    assert seen is not None, "there is no header X-Request-Id"
    assert seen == wanted, f"X-Request-Id is {seen!r}, and the record's id {wanted!r}"


@checks("systemone.record.counts")
def test_counts(recorded: Recorded) -> None:
    seen = [recorded.record.get(name) for name in ("prompt_tokens", "completion_tokens")]
    wanted = [recorded.decisions.input_tokens, 0]
    assert seen == wanted, f"the record counts {seen} tokens, the usage {wanted}"


@checks("systemone.record.finish-reason")
def test_finish_reason(recorded: Recorded) -> None:
    seen = recorded.record.get("finish_reason")
    assert seen == "stop", f"the record's finish_reason is {seen!r}"


@checks("systemone.record.decode")
def test_decode(recorded: Recorded) -> None:
    seen = recorded.record.get("decode_ms")
    assert isinstance(seen, int | float), f"decode_ms is {seen!r}"
    assert seen == 0, f"decode_ms is {seen!r}"


@checks("systemone.record.sampling")
def test_sampling(recorded: Recorded) -> None:
    assert "sampling" in recorded.record, f"the record has {list(recorded.record)}"
    seen = recorded.record["sampling"]
    assert seen is None, f"the record's sampling is {seen!r}"
