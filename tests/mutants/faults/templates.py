"""Models without a chat template, whose servers say so wrongly."""

from __future__ import annotations

from typing import Any

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.kinds import BaseModelToy
from tests.mutants.toy.rules import Refused


@breaks("template.missing.elsewhere")
class PointsNowhere(BaseModelToy):
    def error(self, refused: Refused) -> Any:
        message = refused.message.replace("; use /v1/completions", "")
        return super().error(Refused(refused.status, message, refused.param))


@breaks("template.missing.refused")
class NamesTheModel(BaseModelToy):
    def error(self, refused: Refused) -> Any:
        if refused.param != "messages":
            return super().error(refused)
        return super().error(Refused(refused.status, refused.message, "model"))


@breaks("template.missing.refused", "template.missing.elsewhere")
class BreaksWithoutATemplate(BaseModelToy):
    def status(self, refused: Refused) -> int:
        return 422 if refused.param == "messages" else super().status(refused)
