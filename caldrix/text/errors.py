"""What can go wrong between text and tokens."""

from __future__ import annotations

from caldrix.errors import CaldrixError, Refusal


class TokenizerRefusal(Refusal):
    """A model's tokenizer is missing, broken, or of a kind that is not supported."""


class TemplateRefusal(Refusal):
    """A chat template cannot be loaded: its message names the line."""


class InvalidText(CaldrixError):
    """A text is no valid Unicode, so it has no tokens."""


class TemplateError(CaldrixError):
    """A chat template did not render these messages: it raised, failed, or went over a limit.

    What a template says through ``raise_exception`` is the whole message.
    """
