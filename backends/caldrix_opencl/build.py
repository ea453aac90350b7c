"""Kernels from their sources, built for a device and kept in the cache for the next start."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files

import pyopencl as cl

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.cache import cache_errors, cache_root
from caldrix_opencl.context import Context

_KERNELS = files("caldrix_opencl") / "kernels"


class Builder:
    """Builds programs for a context, each once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._built: dict[tuple[object, ...], cl.Program] = {}
        self._cache = cache_root() / "opencl"

    def program(self, sources: Sequence[str], definitions: Mapping[str, int | str]) -> cl.Program:
        """The program of some files of ``kernels``, one after another.

        Binaries are kept by device, driver, sources and options. Raises LaneUnavailable where a
        build fails, whose log is kept beside them, and CacheUnusable.
        """
        shape = self._context.shape
        definitions = {"VECTOR": shape.vector, "SPLIT": shape.split, **definitions}
        key = (*sources, *sorted(definitions.items()))
        if key not in self._built:
            self._built[key] = self._build(sources, definitions)
        return self._built[key]

    def _build(self, sources: Sequence[str], definitions: Mapping[str, int | str]) -> cl.Program:
        text = "\n".join((_KERNELS / f"{name}.cl").read_text() for name in sources)
        options = [f"-D{name}={value}" for name, value in definitions.items()]
        with cache_errors(self._cache):
            self._cache.mkdir(parents=True, exist_ok=True)
        program = cl.Program(self._context.handle, text)
        with warnings.catch_warnings():
            # A compiler's remarks on sources that it takes.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            try:
                built: cl.Program = program.build(options, cache_dir=str(self._cache))
            except cl.RuntimeError as error:
                raise self._failed(sources, options, text, error) from error
        return built

    def _failed(
        self, sources: Sequence[str], options: Sequence[str], text: str, error: Exception
    ) -> LaneUnavailable:
        told = f"{self._context.device}\n{' '.join(options)}\n\n{error}\n\n{text}"
        name = hashlib.sha256(told.encode()).hexdigest()[:16]
        path = self._cache / f"failed-{name}.log"
        with cache_errors(path):
            path.write_text(told)
        return LaneUnavailable(
            f"the driver of {self._context.device.name} does not build the kernels of "
            f"{sources[-1]}.cl; its log is {path}; try a newer driver, or --backend cpu"
        )
