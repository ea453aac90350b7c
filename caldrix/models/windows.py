"""Which layers of a checkpoint attend to a sliding window, as config.json says it."""

from __future__ import annotations

from collections.abc import Collection

from caldrix.errors import quoted
from caldrix.models.fields import Fields, UnsupportedModel

_FULL = "full_attention"
_SLIDING = "sliding_attention"
_MAX_WINDOW_LAYERS = 28


def layer_windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """Each layer's window, None for full attention.

    ``layer_types`` decides where it stands; older files of Qwen models have
    ``use_sliding_window`` with ``max_window_layers``, the number of full layers at the bottom,
    whose default is that of the models' own code.
    """
    if "layer_types" in config:
        return tuple(
            config.integer("sliding_window") if kind == _SLIDING else None
            for kind in layer_types(config, layers)
        )
    if not config.flag("use_sliding_window", False):
        return (None,) * layers
    full = config.integer("max_window_layers", _MAX_WINDOW_LAYERS, least=0)
    window = config.integer("sliding_window")
    return tuple(None if layer < full else window for layer in range(layers))


def layer_types(
    config: Fields, layers: int, known: Collection[str] = (_FULL, _SLIDING)
) -> tuple[str, ...]:
    """The field of that name, checked: an entry for each layer, one of the ``known``."""
    kinds = tuple(config.texts("layer_types"))
    if len(kinds) != layers:
        raise UnsupportedModel(
            f"{config.where}: layer_types has {len(kinds)} entries for {layers} layers"
        )
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModel(f"{config.where}: layer type {quoted(kind)} is not supported")
    return kinds


def is_sliding(kind: str) -> bool:
    """Whether an entry of ``layer_types`` means a sliding window."""
    return kind == _SLIDING
