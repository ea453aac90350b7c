"""Reports of several servers beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caldrix_conformance.errors import SuiteError
from caldrix_conformance.saved import read_report
from caldrix_conformance.side_by_side import main, markdown


def write(path: Path, **statuses: str) -> Path:
    clauses = [
        {"id": name.replace("_", "."), "level": "must" if name.endswith("a") else "should"}
        | {"status": status, "promise": "It is.", "source": "document", "cases": ["test_x"]}
        for name, status in statuses.items()
    ]
    run = {"contract": "caldrix", "target": "t", "model": "m", "faults": []}
    path.write_text(json.dumps(run | {"clauses": clauses}))
    return path


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "1.json", chat_a="pass", chat_b="pass", health_a="unsupported")
    other = write(tmp_path / "2.json", chat_a="fail", chat_b="pass", health_a="pass")
    assert main(f"ours 1={one}", f"their|s 2={other}") == 0
    assert capsys.readouterr().out == (
        "| clauses | ours 1 | their\\|s 2 |\n"
        "| --- | ---: | ---: |\n"
        "| pass | 2 | 2 |\n"
        "| fail | 0 | 1 |\n"
        "| unsupported | 1 | 0 |\n"
        "| broken, must | 0 | 1 |\n"
        "\n"
        "| kept | ours 1 | their\\|s 2 |\n"
        "| --- | ---: | ---: |\n"
        "| chat | 2 of 2 | 1 of 2 |\n"
        "| health | – | 1 of 1 |\n"
    )


def test_reports_of_different_clauses_are_refused(tmp_path: Path) -> None:
    one, other = write(tmp_path / "1.json", chat_a="pass"), write(tmp_path / "2.json")
    with pytest.raises(SuiteError, match=r"not of the same clauses; chat\.a is in one"):
        markdown({"1": read_report(one), "2": read_report(other)})


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_text("{}")
    assert main(f"a={path}") == 2
    assert capsys.readouterr().err.startswith(f"{path}: not a report: ")


@pytest.mark.parametrize("arguments", [(), ("a.json",), ("a=1.json", "a=2.json")])
def test_arguments_that_are_no_reports(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*arguments) == 2
    assert capsys.readouterr().err == "give reports, each with a title of its own, as TITLE=FILE\n"
