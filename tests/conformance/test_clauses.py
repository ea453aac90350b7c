"""The clause files: what the loader takes, and what it refuses by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clause_schema import DIRECTIVE, schema, schema_text
from caldrix_conformance.clauses import Clause, Level, Source, load_spec
from caldrix_conformance.errors import SpecError
from caldrix_conformance.resources import spec_directory

CLAUSE = """
[[clause]]
id = "chat.stop.string"
level = "must"
promise = "It stops."
where = "POST /v1/chat/completions"
"""
AREA = 'title = "Chat"\nneeds = ["chat"]\n'


def write(directory: Path, text: str, name: str = "chat") -> Path:
    (directory / f"{name}.toml").write_text(text)
    return directory


def test_a_clause(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, AREA + CLAUSE + 'needs = ["sampling"]\nsource = "choice"\n'))
    assert list(spec) == [
        Clause(
            id="chat.stop.string",
            level=Level.MUST,
            promise="It stops.",
            where="POST /v1/chat/completions",
            needs=frozenset({Capability.CHAT, Capability.SAMPLING}),
            source=Source.CHOICE,
            untestable=None,
        )
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (AREA + CLAUSE + "nedes = []\n", "extra fields found (nedes)"),
        (AREA + CLAUSE + CLAUSE, "'chat.stop.string' is there twice"),
        (AREA + CLAUSE.replace("must", "shall"), "'shall' is not a valid Level"),
        (
            AREA + CLAUSE.replace('where = "POST /v1/chat/completions"', ""),
            "required field missing",
        ),
        (AREA + CLAUSE.replace('"It stops."', "7"), "expected a text, got 7"),
        (AREA + CLAUSE.replace('"It stops."', '" "'), "expected a text, got ' '"),
        (AREA + CLAUSE + 'needs = ["telepathy"]\n', "'telepathy' is not a valid Capability"),
        (AREA + CLAUSE.replace("chat.stop.string", "chat"), "is not an id like area.topic"),
        (AREA + CLAUSE.replace("chat.stop", "Chat.Stop"), "is not an id like area.topic"),
        (AREA + CLAUSE.replace("chat.stop", "errors.stop"), "belongs in errors.toml"),
        (AREA + "clause = []\n", "an area without clauses"),
        ("title = ", "not TOML"),
    ],
)
def test_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, text))
    assert str(caught.value).startswith("chat.toml: ")
    assert complaint in str(caught.value)


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no clause files"):
        load_spec(tmp_path)


def test_the_project_s_own() -> None:
    spec = load_spec(spec_directory("caldrix"))
    promises = [clause.promise for clause in spec]
    assert len(set(promises)) == len(promises)
    assert all(promise.endswith(".") for promise in promises)
    with pytest.raises(SpecError, match="is no clause of the contract 'caldrix'"):
        spec.clause("chat.no-such-clause")


def test_the_schema_for_editors() -> None:
    specs = spec_directory("caldrix").parent
    file = specs / "clause-file.schema.json"
    assert file.read_text("utf-8") == schema_text(), "write it anew: see clause_schema.py"
    for path in specs.glob("*/*.toml"):
        assert path.read_text("utf-8").startswith(f"{DIRECTIVE}\n"), f"{path.name} lacks its schema"
        assert (path.parent / DIRECTIVE.removeprefix("#:schema ")).samefile(file)


def test_the_schema_says_what_the_loader_takes() -> None:
    area = schema()
    clause = area["properties"]["clause"]["items"]
    assert (area["required"], area["additionalProperties"]) == (["title", "clause"], False)
    assert clause["required"] == ["id", "level", "promise", "where"]
    assert clause["additionalProperties"] is False
    assert clause["properties"]["level"]["enum"] == ["must", "should", "may"]
    assert clause["properties"]["source"] == {
        "description": clause["properties"]["source"]["description"],
        "enum": ["document", "choice"],
        "default": "document",
    }
    capabilities = [capability.value for capability in Capability]
    assert area["properties"]["needs"]["items"]["enum"] == capabilities
    pattern = clause["properties"]["id"]["pattern"]
    assert re.search(pattern, "chat.stop.over-tokens")
    assert not re.search(pattern, "chat")
    assert not re.search(pattern, "Chat.stop")
