"""What became of the clauses since a revision, as markdown for a review or as JSON.

Usage: python -m caldrix_conformance.spec_diff [REV] [--contract NAME] [--json]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from caldrix_conformance.errors import SuiteError
from caldrix_conformance.spec_diff.command import spec_diff


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; a failure is told in one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="spec-diff", description="What became of the clauses since a revision."
    )
    parser.add_argument("revision", nargs="?", metavar="REV")
    parser.add_argument("--contract", default="caldrix", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print JSON instead of markdown")
    options = parser.parse_args(arguments)
    try:
        return spec_diff(options.revision, contract=options.contract, as_json=options.json)
    except SuiteError as error:
        print(f"spec-diff: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
