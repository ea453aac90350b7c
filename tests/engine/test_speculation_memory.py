"""The file of --speculation-memory: round trips, company, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caldrix.engine.speculation.memory import (
    MemoryKey,
    SpeculationMemory,
    SpeculationMemoryLost,
    SpeculationMemoryUnusable,
)
from caldrix.engine.speculation.tuner import Tuner, TunerState

KEY = MemoryKey("a model", "cpu", "ngram 2:4")
OTHER = MemoryKey("a model", "cpu", "draft small")


def learned(kinds: int = 3, seconds: float = 0.01) -> TunerState:
    tuner = Tuner(kinds)
    tuner.record(0, 0, 0, seconds)
    tuner.record(kinds - 1, 3, 2, seconds / 3, proposing=1e-9)
    return tuner.state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.json"


def test_what_was_learned_comes_back(path: Path) -> None:
    memory = SpeculationMemory(path)
    assert memory.recall(KEY, 3) is None
    assert not path.exists()
    memory.remember(KEY, learned())
    assert SpeculationMemory(path).recall(KEY, 3) == learned()
    assert list(path.parent.iterdir()) == [path]


def test_one_file_serves_several(path: Path) -> None:
    first, second = SpeculationMemory(path), SpeculationMemory(path)
    first.remember(KEY, learned())
    # Written while the second was running; it knows nothing of it.
    second.remember(OTHER, learned(kinds=1))
    first.remember(KEY, learned(seconds=0.5))
    memory = SpeculationMemory(path)
    assert memory.recall(KEY, 3) == learned(seconds=0.5)
    assert memory.recall(OTHER, 1) == learned(kinds=1)
    for key in (MemoryKey("b", "cpu", "ngram 2:4"), MemoryKey("a model", "hip", "ngram 2:4")):
        assert memory.recall(key, 3) is None


def test_a_link_stays_a_link(path: Path) -> None:
    link = path.with_name("link.json")
    link.symlink_to(path)
    SpeculationMemory(link).remember(KEY, learned())
    assert link.is_symlink()
    assert SpeculationMemory(path).recall(KEY, 3) == learned()


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    SpeculationMemory(path).remember(KEY, learned())
    content = json.loads(path.read_text())
    change(content)
    return json.dumps(content)


def first_step(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["entries"][0]["state"]["steps"][0]
    return found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" ", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("\udcff", "it is not JSON"),
        ("[]", "it holds something else"),
        ('{"dependencies": {}}', "it holds something else"),
        ('{"format": 3}', "it holds something else"),
    ],
)
def test_a_foreign_file_is_refused_and_kept(path: Path, text: str, reason: str) -> None:
    raw = text.encode(errors="surrogateescape")
    path.write_bytes(raw)
    with pytest.raises(SpeculationMemoryUnusable) as caught:
        SpeculationMemory(path)
    assert str(caught.value) == (
        f"--speculation-memory {path} cannot be used: {reason}; name another file, or remove it if "
        "it is of no use"
    )
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.update(version=2), "another version of caldrix wrote it"),
        (lambda content: content.update(more=1), "extra fields found"),
        (lambda content: content.update(entries=3), "entries"),
        (lambda content: content["entries"].append({}), r"entries\[1\]"),
        (lambda content: content["entries"][0]["key"].update(lane=3), "key.lane"),
        (lambda content: content["entries"][0]["state"]["steps"].pop(), r"entries\[0\].state"),
        (lambda content: first_step(content).update(value="1"), r"steps\[0\].value"),
        (lambda content: first_step(content).update(value=True), r"steps\[0\].value"),
        (lambda content: first_step(content).update(value=-1), r"steps\[0\]"),
        (lambda content: first_step(content).update(value=float("nan")), r"steps\[0\]"),
        (lambda content: first_step(content).pop("weight"), r"steps\[0\].weight"),
        (lambda content: content.pop("entries"), "required field missing"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(
    path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    text = changed(path, change)
    path.write_text(text)
    with pytest.raises(SpeculationMemoryUnusable, match=reason):
        SpeculationMemory(path)
    assert path.read_text() == text


def test_an_entry_of_another_shape_is_refused(path: Path) -> None:
    SpeculationMemory(path).remember(KEY, learned(kinds=2))
    with pytest.raises(SpeculationMemoryUnusable, match="its entry for ngram 2:4 has another"):
        SpeculationMemory(path).recall(KEY, 3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "it is no regular file that may be written"),
        (lambda path: os.mkfifo(path), "it is no regular file that may be written"),
        (lambda path: path.symlink_to(path), "its links lead nowhere"),
        (lambda path: path.symlink_to("/dev/full"), "it is no regular file that may be written"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(
    path: Path, make: Callable[[Path], object], reason: str
) -> None:
    make(path)
    with pytest.raises(SpeculationMemoryUnusable, match=reason):
        SpeculationMemory(path)


def test_a_directory_that_is_missing_or_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpeculationMemoryUnusable, match=r"there is no directory .*/none;"):
        SpeculationMemory(path.parent / "none" / "memory.json")

    def refused(*arguments: object, **options: object) -> object:
        raise PermissionError(13, "Permission denied")

    # Root may write everywhere, so the system itself can't be made to say no here.
    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(SpeculationMemoryUnusable, match="it cannot be written: Permission denied"):
        SpeculationMemory(path)


def test_a_file_that_became_something_else_is_kept_at_the_end(path: Path) -> None:
    memory = SpeculationMemory(path)
    path.write_text("notes")
    with pytest.raises(SpeculationMemoryLost, match=f"what was learned is lost: .*{path.name}"):
        memory.remember(KEY, learned())
    assert path.read_text() == "notes"


def test_a_write_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SpeculationMemory(path)
    memory.remember(KEY, learned())
    before = path.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SpeculationMemoryLost, match="No space left on device"):
        memory.remember(KEY, learned(seconds=0.7))
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]
