"""What can go wrong between a model's name and its weights, each case a refusal at start."""

from __future__ import annotations

from caldrix.errors import Refusal


class CorruptFile(Refusal):
    """A model file cannot be read: broken, hostile, or in a form that is not supported."""


class ModelNotFound(Refusal):
    """A name leads to no model."""


class CacheUnusable(Refusal):
    """The cache directory cannot be written, or its disk is full."""


class DownloadFailed(Refusal):
    """A model's files could not be fetched, or what arrived is not what was announced."""


WITHOUT_NETWORK = "check the network; `caldrix models list` names the models on this machine"
"""What to do when a server does not answer, for the end of a sentence."""


def printable(text: str, limit: int = 300) -> str:
    """``text`` fit for a terminal: names in a file can be long and hold control characters."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
