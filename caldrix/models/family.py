"""What a family is: how it recognises a checkpoint, and the Program it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from caldrix.models.fields import Fields
from caldrix.models.program import Program
from caldrix.weights.tensor import Tensor


@frozen
class Family:
    """An architecture. The two readers raise UnsupportedModel for what they don't implement."""

    name: str
    model_types: frozenset[str]
    """``model_type`` of the config.json files it reads."""
    architectures: frozenset[str]
    """``general.architecture`` of the GGUF files it reads."""
    from_config: Callable[[Fields], Program]
    from_gguf: Callable[[Fields, Mapping[str, Tensor]], Program]
    gguf_names: Mapping[str, str]
