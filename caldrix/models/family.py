"""What a family is: how it recognises a checkpoint, and the Program it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from caldrix.models.fields import Fields
from caldrix.models.program import Program
from caldrix.models.tensors import NamedTensors
from caldrix.models.vision_tower import Tower


@frozen
class Family:
    """An architecture.

    The two readers make a Program of a description and of the tensors it must agree with. They
    raise UnsupportedModel for what they don't implement, and for sizes that the tensors don't
    have, before they build anything of such a size.
    """

    name: str
    model_types: frozenset[str]
    """``model_type`` of the config.json files it reads."""
    architectures: frozenset[str]
    """``general.architecture`` of the GGUF files it reads."""
    from_config: Callable[[Fields, NamedTensors], Program]
    from_gguf: Callable[[Fields, NamedTensors], Program] | None = None
    """None for a family without a GGUF architecture of its own."""
    gguf_names: Mapping[str, str] = {}
    tower: Callable[[Fields, NamedTensors], Tower] | None = None
    """Reads the vision tower of config.json, where models of the family have one that is served;
    raises as the readers do."""
    unserved: tuple[str, ...] = ()
    """How the names of tensors begin that belong to a part of the model which is not served."""
