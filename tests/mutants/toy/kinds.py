"""Kinds of toy servers whose difference is small; others have modules of their own."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from caldrix_conformance.capabilities import Capability
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, Json, Toy, right
from tests.mutants.toy.systemone import UndecidedToy


@right
@define
class BaseModelToy(UndecidedToy):
    """A model without a chat template."""

    lacks: ClassVar[frozenset[Capability]] = Toy.lacks - {Capability.NO_TEMPLATE} | {
        Capability.CHAT
    }

    def refusal(self) -> Refused:
        return Refused(400, "the model has no chat template; /v1/systemone needs one")

    def check(self, path: str, body: Json) -> None:
        super().check(path, body)
        if path == CHAT:
            words = "this model has no chat template; use /v1/completions"
            raise Refused(400, words, "messages")
