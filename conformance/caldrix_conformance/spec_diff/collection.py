"""What cases there are in a folder, which clauses each declares, and with which values it is run.

Usage: python -P collection.py FOLDER FILE (writes JSON)

A program of its own: a revision's cases import that revision's suite, of which one process can hold
only one. So nothing of the suite is imported here; it is known by the names of its marks alone.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from enum import Enum
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import attrs
import pytest

_CLAUSES = "checks"
_ROWS = "parametrize"
_SUITE = "caldrix_conformance"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)+")


class Collection:
    """The plugin: notes what pytest collects, and what it can't."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases: list[dict[str, Any]] = []
        self.errors: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that can't be imported is an error, with the last line of what Python says."""
        if report.failed:
            lines = report.longreprtext.strip().splitlines()
            self.errors.append(f"{report.nodeid}: {lines[-1].removeprefix('E').strip()}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All cases, each row of a table for itself."""
        shared = dict(_shared())
        for item in session.items:
            if isinstance(item, pytest.Function):
                self.cases.append(self._case(item, Description(shared)))

    def _case(self, item: pytest.Function, description: Description) -> dict[str, Any]:
        marks = [mark for mark in item.iter_markers() if mark.name not in (_CLAUSES, _ROWS)]
        clauses = [name for mark in item.iter_markers(_CLAUSES) for name in mark.args]
        rows = item.callspec.params if hasattr(item, "callspec") else {}
        values = description.of([rows, [(mark.name, mark.args, mark.kwargs) for mark in marks]])
        return {
            "file": item.path.relative_to(self.folder).as_posix(),
            "function": item.cls.__name__ if item.cls else item.originalname,
            "fixtures": sorted(item.fixturenames),
            "clauses": list(dict.fromkeys(clauses)),
            "values": sha256(values.encode("utf-8", "backslashreplace")).hexdigest(),
            "names": sorted(description.names),
            "paths": sorted(description.paths),
        }


class Description:
    """Values as text that two processes agree on; notes what they name on the way."""

    def __init__(self, shared: dict[int, str]) -> None:
        self._shared = shared
        self.names: set[str] = set()
        """Of the case's own module, what functions and classes among the values need."""
        self.paths: set[str] = set()
        """Texts like those that name goldens."""
        self._open: set[int] = set()

    def of(self, value: Any) -> str:
        """The text of ``value``; an object of the suite's own stands by its name."""
        if id(value) in self._shared:
            return self._shared[id(value)]
        match value:
            case Enum():
                return f"{type(value).__qualname__}.{value.name}"
            case str():
                if len(value) < 200 and _PATH.fullmatch(value):
                    self.paths.add(value)
                return repr(value)
            case dict():
                return f"{{{', '.join(f'{self.of(k)}: {self.of(v)}' for k, v in value.items())}}}"
            case list() | tuple():
                return f"{type(value).__name__}({', '.join(map(self.of, value))})"
            case set() | frozenset():
                return f"set({', '.join(sorted(map(self.of, value)))})"
            case FunctionType():
                return self._function(value)
            case CodeType():
                return self._code(value)
            case type():
                self.names.add(value.__name__)
                return value.__qualname__
            case ModuleType():
                return f"module {value.__name__}"
            case functools.partial():
                return f"partial({self.of([value.func, value.args, value.keywords])})"
        return self._object(value)

    def _object(self, value: Any) -> str:
        kind = type(value)
        if attrs.has(kind):
            members = {one.name: getattr(value, one.name) for one in attrs.fields(kind)}
        else:
            members = getattr(value, "__dict__", {})
        if not members or id(value) in self._open:
            return f"{kind.__qualname__} {_ADDRESS.sub('', repr(value))}"
        self._open.add(id(value))
        text = f"{kind.__qualname__} {self.of(members)}"
        self._open.remove(id(value))
        return text

    def _function(self, function: FunctionType) -> str:
        self.names.add(function.__name__)
        if function.__qualname__.isidentifier():
            return f"function {function.__name__}"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return f"function {self.of([function.__code__, function.__defaults__, cells])}"

    def _code(self, code: CodeType) -> str:
        self.names.update(code.co_names)
        names = (code.co_names, code.co_varnames, code.co_freevars)
        return f"code {self.of([code.co_code, names, code.co_consts])}"


def _shared() -> Iterator[tuple[int, str]]:
    """The suite's own objects, by identity: what they hold is no matter of the case they serve."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] == _SUITE:
            for name, value in vars(module).items():
                if type(value).__module__.split(".")[0] == _SUITE and not isinstance(value, Enum):
                    yield id(value), name


def main(folder: Path, file: Path) -> int:
    """Collect the cases in ``folder`` and write them to ``file``; pytest's exit status."""
    configuration = folder.parent / "pytest.toml"
    collection = Collection(folder)
    status = pytest.main(
        [
            str(folder),
            f"--config-file={configuration if configuration.exists() else os.devnull}",
            # A suite may be strict about marks, which its own plugin would declare.
            "--override-ini=addopts=",
            f"--rootdir={folder.parent}",
            f"--confcutdir={folder.parent}",
            *("--collect-only", "--import-mode=importlib", "--assert=plain", "-Wignore"),
            *("--disable-plugin-autoload", "-pno:cacheprovider", "-pno:terminal", "-pno:capture"),
        ],
        plugins=[collection],
    )
    result = {"cases": collection.cases, "errors": collection.errors}
    file.write_text(json.dumps(result), "utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
