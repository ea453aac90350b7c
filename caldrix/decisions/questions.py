"""Questions as typed values: what is asked about a state, and between which answers."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from caldrix.decisions.values import Text


@frozen
class Choice:
    """Which of several named options it is, each with a description or None."""

    instructions: Text | None
    options: Mapping[str, Text | None]


@frozen
class Score:
    """Which level of a scale fits; the levels are in order, the lowest first."""

    instructions: Text | None
    levels: tuple[Text, ...]


@frozen
class Noul:
    """Whether it is yes or no, each with a description of when it is so, or None."""

    instructions: Text | None
    yes: Text | None = None
    no: Text | None = None


Question = Choice | Score | Noul
