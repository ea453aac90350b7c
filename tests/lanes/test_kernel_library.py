"""Compiled kernels on disk: made once, made again when damaged, and not needed to be there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attrs import define, field

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.progress import Unit
from caldrix_cpu import library
from caldrix_cpu.library import cache_key, load_kernels
from caldrix_cpu.object_file import read_object
from caldrix_cpu.variants import VARIANTS
from tests.support.compiled import BEST

UNIT = "matmul-F32"


@define
class Told:
    """What a Progress was told."""

    begun: list[tuple[str, int | None]] = field(factory=list)
    advanced: int = 0

    def begin(self, what: str, total: int | None, done: int = 0, unit: Unit = "bytes") -> None:
        self.begun.append((what, total))

    def advance(self, count: int) -> None:
        self.advanced += count

    def note(self, text: str) -> None:
        raise AssertionError(text)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiles() -> Told:
    told = Told()
    load_kernels(BEST, [UNIT], told)
    assert told.begun == [(f"compiling kernels for {BEST.name}", 1)]
    assert told.advanced == 1
    return told


def test_kernels_are_compiled_once_and_again_if_damaged(cache: Path) -> None:
    compiles()
    file = cache / "kernels" / cache_key(BEST) / f"{UNIT}.kernel"
    whole = file.read_bytes()
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    told = Told()
    load_kernels(BEST, [UNIT], told)
    assert told.begun == []
    for damaged in (b"", whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"other" + whole):
        file.write_bytes(damaged)
        assert read_object(file) is None
    compiles()
    assert read_object(file) is not None


def test_without_a_cache_kernels_are_compiled_for_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("CALDRIX_CACHE", str(file / "cache"))
    compiles()
    assert list(tmp_path.iterdir()) == [file]


def test_a_failing_compiler_is_one_sentence(cache: Path) -> None:
    with pytest.raises(LaneUnavailable) as refused:
        load_kernels(BEST, ["matmul-Q9"], Told())
    message = str(refused.value)
    assert message == (
        f"kernels for {BEST.name} cannot be compiled: ValueError: there is no unit matmul-Q9; "
        "CALDRIX_CPU_KERNELS=numpy runs without them"
    )


def test_changed_sources_have_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache_key(variant) for variant in VARIANTS.values()}
    assert len(keys) == len(VARIANTS)
    shutil.copytree(library._PACKAGE, tmp_path / "copy")
    monkeypatch.setattr(library, "_PACKAGE", tmp_path / "copy")
    uncached = cache_key.__wrapped__
    assert uncached(BEST) == cache_key(BEST)
    with (tmp_path / "copy" / "codegen" / "emit.py").open("a") as source:
        source.write("# changed\n")
    assert uncached(BEST) != cache_key(BEST)
