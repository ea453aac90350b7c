"""Questions as typed values, and what they have in common: a number of options to tell apart."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from caldrix.decisions.values import Text


@frozen
class Choice:
    """One of several named options, each with a description or None."""

    instructions: Text | None
    options: Mapping[str, Text | None]


@frozen
class Score:
    """A level of a scale, the lowest first."""

    instructions: Text | None
    levels: tuple[Text, ...]


@frozen
class Noul:
    """Yes or no, each with a description of when it is so, or None."""

    instructions: Text | None
    yes: Text | None = None
    no: Text | None = None


Question = Choice | Score | Noul
