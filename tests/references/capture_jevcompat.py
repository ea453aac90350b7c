"""Captures what jevcompat found of our server on SmolLM2, as far as `tests.jevcompat` reads it.

Usage: just jevcompat && python -m tests.references.capture_jevcompat jevcompat-reports/report.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cattrs import unstructure

from tests.jevcompat.outcome import read_outcome

CAPTURED = Path(__file__).parent / "data" / "jevcompat.json"


def main(report: Path) -> None:
    """Write the part of ``report`` that is compared."""
    captured = json.dumps(unstructure(read_outcome(report)), indent=1)
    CAPTURED.write_text(f"{captured}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
