"""Where the clauses and goldens lie: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from caldrix_conformance.errors import SuiteError

PACKAGE = Path(__file__).resolve().parent
CASES = PACKAGE / "cases"

_CHECKOUT = PACKAGE.parents[1]


def spec_directory(contract: str) -> Path:
    """The folder of a contract's clause files. Raises SuiteError if there is none."""
    return _find("spec", contract)


def goldens_directory(contract: str) -> Path:
    """The folder of a contract's goldens. Raises SuiteError if there is none."""
    return _find("goldens", contract)


def in_checkout() -> bool:
    """Whether the suite runs from a checkout, where its goldens are kept and may be rewritten."""
    return not (PACKAGE / "goldens").is_dir()


def _find(kind: str, contract: str) -> Path:
    for root in (PACKAGE, _CHECKOUT):
        directory = root / kind / contract
        if directory.is_dir():
            return directory
    raise SuiteError(f"there is no {kind} of a contract named {contract!r} in this installation")
