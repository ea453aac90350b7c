"""What one rendering of a chat template may cost: time, work, and the size of any value.

A template is a program that came with a model, and its input comes from a client. Neither may
hold the server. There is no signal, thread or process to leave behind: everything a template does
passes through `Allowance`, which stops it. Three rules make the bound hold.

- Between two looks at the clock only one operation runs, on values of bounded size, and every
  value is measured whole when it is made: a list's weight is that of all it reaches, however
  often it shares it, since that is what printing or comparing it would walk through.
- An operation whose result can be far larger than its inputs (a repetition, a padding, a join)
  is measured before it runs.
- An operation whose steps can be far more than its inputs is charged or refused before it runs.
  Such are hash tables of numbers or tuples, whose hashes their author can choose to be equal, and
  searches that start anew at each character.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Set, ValuesView
from contextvars import ContextVar
from typing import TypeVar

from attrs import define, field, frozen

from caldrix.text.errors import TemplateError

T = TypeVar("T")

_DISTINCT_BITS = 60  # CPython hashes a whole number modulo 2**61 - 1
_SAME_HASH = 4  # different keys of one hash: honest ones do not reach even two
_MANY = (list, tuple, Set, KeysView, ValuesView, ItemsView)


@frozen
class RenderLimits:
    """Bounds of one rendering."""

    characters: int = 8 * 1024**2
    """Of the output, and of any value on the way, counting each list entry as one more."""
    work: int = 128 * 1024**2
    """Characters and list entries written, over the whole rendering."""
    seconds: float = 5.0
    """Wall-clock time."""
    width: int = 4096
    """Of any padding, indentation or precision that a template asks for."""
    bits: int = 4096
    """Of any whole number."""


@define
class Allowance:
    """What is left of one rendering's limits; going over one raises TemplateError."""

    limits: RenderLimits
    clock: Callable[[], float] = time.monotonic
    _work: int = field(init=False)
    _deadline: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._work = self.limits.work
        self._deadline = self.clock() + self.limits.seconds

    def spend(self, work: int) -> None:
        """Account for ``work``, and look at the clock."""
        self._work -= work
        if self._work < 0:
            raise TemplateError(
                "the chat template does more work than is allowed for one prompt;"
                " send shorter messages or use another template"
            )
        if self.clock() > self._deadline:
            raise TemplateError(
                f"the chat template ran for more than {self.limits.seconds:g} seconds;"
                " send shorter messages or use another template"
            )

    def fits(self, size: int) -> None:
        """Check the size of a value that is about to be made."""
        if size > self.limits.characters:
            raise TemplateError(
                f"the chat template makes a text or list of more than {self.limits.characters}"
                " characters; send shorter messages or use another template"
            )

    def width(self, width: object) -> None:
        """Check a width or precision that a template asks for."""
        if isinstance(width, int) and abs(width) > self.limits.width:
            raise TemplateError(
                f"the chat template asks for a width of more than {self.limits.width}"
            )

    def bits(self, length: int) -> None:
        """Check the length of a whole number."""
        if length > self.limits.bits:
            raise TemplateError(
                f"the chat template computes a number of more than {self.limits.bits} bits"
            )

    def hashed(self, keys: Iterable[object]) -> None:
        """Check the keys of a hash table that is about to be made, and account for them.

        Keys that differ and have one hash make each look-up compare with them all. Texts cannot
        be chosen so, since their hashes are salted, nor small whole numbers, which are their own.
        """
        same: dict[int, list[object]] = {}
        count = 0
        for key in keys:
            count += 1
            if isinstance(key, str) or (
                isinstance(key, int) and key.bit_length() <= _DISTINCT_BITS
            ):
                continue
            others = same.setdefault(hash(key), [])
            if key not in others:
                others.append(key)
            if len(others) > _SAME_HASH:
                raise TemplateError(
                    "the chat template looks up numbers or tuples that were chosen to be slow;"
                    " use another template"
                )
        self.spend(count)

    def weigh(self, value: object) -> int:
        """The characters and entries that ``value`` reaches; checked, and its visit accounted for.

        Numbers, namespaces and iterators count as one.
        """
        weight, visited, pending = 0, 0, [value]
        while pending:
            item = pending.pop()
            visited += 1
            weight += 1
            if isinstance(item, str | bytes):
                weight += len(item)
            elif isinstance(item, Mapping):
                weight += 2 * len(item)
                self.fits(weight)
                pending.extend(item.keys())
                pending.extend(item.values())
            elif isinstance(item, _MANY):
                weight += len(item)
                self.fits(weight)
                pending.extend(item)
            self.fits(weight)
        self.spend(visited)
        return weight

    def admit(self, value: T) -> T:
        """Account for a value that was just made, and return it."""
        if isinstance(value, str | bytes):
            self.fits(len(value))
            self.spend(1 + len(value))
        else:
            if isinstance(value, int):
                self.bits(value.bit_length())
            self.weigh(value)
        return value


current_allowance: ContextVar[Allowance] = ContextVar("current_allowance")
"""The allowance of the rendering that is running here."""
