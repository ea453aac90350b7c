"""What can go wrong with the suite itself, as opposed to the server it looks at."""

from __future__ import annotations


class SuiteError(Exception):
    """A failure of the suite; ``str(error)`` is one sentence for a person."""


class SpecError(SuiteError):
    """A clause file breaks its own rules, or a case names a clause that isn't there."""


class GoldenError(SuiteError):
    """A golden file can't be read, or must not be written."""


class TargetUnreachable(SuiteError):
    """No server answers at the target's address, or it doesn't say which model it serves."""
