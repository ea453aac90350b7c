"""Runs of the suite for its goldens, on the project's own or on others in their place."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from caldrix_conformance import resources
from caldrix_conformance.options import Settings
from caldrix_conformance.run import judge
from caldrix_conformance.verdicts import Report, Status

COUNTED = frozenset({"chat.usage.tokenizer", "completions.usage.tokenizer"})
"""Clauses that are judged by the tokens of a known tokenizer."""

OF_A_MODEL = COUNTED | {
    "chat.content.captured",
    "chat.response.text",
    "chat.stop.captured",
    "completions.ignore-eos.captured",
    "completions.prompt.captured",
    "completions.response.text",
    "completions.stop.captured",
    "completions.streaming.captured",
    "streaming.text.captured",
}
"""Those, and the clauses that are judged by the answers of a known model.

A fault that makes the target another model for the suite leaves them unsupported. So tests of our
own server see to it that they pass.
"""

CLAUSES = OF_A_MODEL | {"chat.response.exact", "chat.response.printed"}
"""Those, and one for any model, and one of the document's own."""


def reports(url: str, *, only: Collection[str] = CLAUSES, **settings: Any) -> Report:
    """A run on the server at ``url``."""
    report = judge(Settings(url=url, only=tuple(only), **settings))
    assert report is not None
    return report


def statuses(url: str, **settings: Any) -> dict[str, tuple[Status, str]]:
    """What became of each clause in such a run, and what was seen of it."""
    return {v.clause.id: (v.status, v.seen) for v in reports(url, **settings).verdicts}


@contextmanager
def goldens_in(root: Path) -> Iterator[Path]:
    """The folder of the contract's goldens below ``root``, in the place of the project's."""
    folder = root / "caldrix"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "goldens_directory", lambda contract: root / contract)
        yield folder


def contents(folder: Path) -> dict[Path, str]:
    """The files below a folder."""
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
