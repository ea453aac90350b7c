"""How much a reading can be asked at once, and what it must be told."""

from __future__ import annotations

from attrs import frozen

from caldrix.decisions.errors import OutOfLimits
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.values import says_something


@frozen
class Range:
    """Both ends are in it."""

    least: int
    most: int


@frozen(kw_only=True)
class Limits:
    """Of one reading. The fields at fault are named from the question: ``("criteria",)``."""

    options: Range
    levels: Range
    questions: Range = Range(1, 64)
    needs_instructions: bool = False
    """On a choice and a score; a noul that has none needs a description."""
    prefix: str = ""
    """What a refusal says first, if anything."""

    def check_number(self, questions: int) -> None:
        """Raises OutOfLimits for too few or too many questions."""
        self._check_size("a request", questions, self.questions, "questions", ())

    def check(self, question: Question) -> None:
        """Raises OutOfLimits for a question that the reading can't be asked."""
        match question:
            case Choice(options=options):
                self._check_size("a choice", len(options), self.options, "options", ("criteria",))
                self._check_instructions("a choice", question)
            case Score(levels=levels):
                self._check_size("a score", len(levels), self.levels, "levels", ("criteria",))
                self._check_instructions("a score", question)
            case Noul(instructions=instructions, yes=yes, no=no):
                if self.needs_instructions and not any(
                    map(says_something, (instructions, yes, no))
                ):
                    problem = "without instructions needs a description of true or of false"
                    raise self._refusal("a noul", problem, ("criteria",))

    def _check_size(
        self, whose: str, size: int, bounds: Range, what: str, path: tuple[str, ...]
    ) -> None:
        if not bounds.least <= size <= bounds.most:
            problem = f"must hold {bounds.least} to {bounds.most} {what}, got {size}"
            raise self._refusal(whose, problem, path)

    def _check_instructions(self, whose: str, question: Question) -> None:
        if self.needs_instructions and not says_something(question.instructions):
            problem = 'needs instructions that are neither null nor ""'
            raise self._refusal(whose, problem, ("instructions",))

    def _refusal(self, whose: str, problem: str, path: tuple[str, ...]) -> OutOfLimits:
        """By itself a problem is told of the field that the path names."""
        return OutOfLimits(f"{self.prefix}{whose} {problem}" if self.prefix else problem, path)
