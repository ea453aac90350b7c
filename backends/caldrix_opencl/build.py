"""Kernels from their sources, built for a device and kept in the cache for the next start.

A binary is kept under a key of its sources, its options, the device and its driver. Its file is
written whole or not at all and vouches for itself, so that what a process left behind that was
killed while it built is no other's fault. Drivers that keep binaries of their own, as PoCL's does,
are left to it.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyopencl as cl
import structlog
from pyopencl.characterize import has_src_build_cache

from caldrix.models.lane import LaneUnavailable
from caldrix.models.program import Activation
from caldrix.weights.cache import cache_root, takes_files
from caldrix_cpu.object_file import read_object, write_object
from caldrix_opencl.context import Context

ACTIVATIONS: Mapping[Activation, int] = {
    Activation.SILU: 0,
    Activation.GELU_TANH: 1,
    Activation.SIGMOID: 2,
}
"""As ``kernels/activations.cl`` numbers them."""

_log = structlog.get_logger(__name__)

_KERNELS = files("caldrix_opencl") / "kernels"
_NO_CACHE: Any = False
"""pyopencl's own cache waits a minute for a lock that a killed process left. (Its annotations do
not have this value; its code does.)"""


_BUILT: dict[tuple[object, ...], cl.Program] = {}
"""By the context of a device and all that went into them: each is built once in a process."""


class Builder:
    """Builds programs for a context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        directory = cache_root() / "opencl"
        self._directory = directory if takes_files(directory) else None
        """Where binaries and logs are kept; None where they can't be, and none are."""
        self._driver_keeps = has_src_build_cache(context.device.handle)

    def program(self, sources: Sequence[str], definitions: Mapping[str, int | str]) -> cl.Program:
        """The program of some files of ``kernels``, one after another.

        Raises LaneUnavailable where a build fails, whose log is kept beside the binaries.
        """
        shape = self._context.shape
        definitions = {"VECTOR": shape.vector, "SPLIT": shape.split, **definitions}
        key = (self._context.handle, *sources, *sorted(definitions.items()))
        if key not in _BUILT:
            _BUILT[key] = self._taken_or_built(sources, definitions)
        return _BUILT[key]

    def _taken_or_built(
        self, sources: Sequence[str], definitions: Mapping[str, int | str]
    ) -> cl.Program:
        text = "\n".join((_KERNELS / f"{name}.cl").read_text() for name in sources)
        options = tuple(f"-D{name}={value}" for name, value in definitions.items())
        if self._directory is None or self._driver_keeps:
            return self._built_from(text, sources, options)
        path = self._directory / f"{sources[-1]}-{self._digest(text, *options)}.binary"
        taken = self._taken(path, options)
        if taken is not None:
            return taken
        built = self._built_from(text, sources, options)
        binaries: Any = built.get_info(cl.program_info.BINARIES)
        try:
            # Of the one device that the context has.
            write_object(path, sources[-1], binaries[0])
        except OSError:
            # The next start builds it again.
            _log.warning("kernels_not_kept", path=str(path), exc_info=True)
        return built

    def _taken(self, path: Path, options: Sequence[str]) -> cl.Program | None:
        """The program that was kept; None for none, or one that the driver does not take."""
        kept = read_object(path)
        if kept is None:
            return None
        context = self._context
        try:
            program = cl.Program(context.handle, [context.device.handle], [kept[1]])
            with _remarks_unheard():
                built: cl.Program = program.build(list(options))
                return built
        except cl.Error:
            # A driver that was replaced in place: it builds from the sources again.
            return None

    def _built_from(self, text: str, sources: Sequence[str], options: Sequence[str]) -> cl.Program:
        program = cl.Program(self._context.handle, text)
        try:
            with _remarks_unheard():
                built: cl.Program = program.build(list(options), cache_dir=_NO_CACHE)
                return built
        except cl.RuntimeError as error:
            raise self._failed(sources, options, text, error) from error

    def _failed(
        self, sources: Sequence[str], options: Sequence[str], text: str, error: Exception
    ) -> LaneUnavailable:
        told = f"{self._context.device}\n{' '.join(options)}\n\n{error}\n\n{text}"
        where = f"its log cannot be kept, as {cache_root()} cannot be written"
        if self._directory is not None:
            path = self._directory / f"failed-{self._digest(told)}.log"
            with suppress(OSError):
                path.write_text(told)
                where = f"its log is {path}"
        return LaneUnavailable(
            f"the driver of {self._context.device.name} does not build the kernels of "
            f"{sources[-1]}.cl; {where}; try a newer driver, or --backend cpu"
        )

    def _digest(self, *texts: str) -> str:
        """Names texts, for this device and driver."""
        device = self._context.device
        digest = hashlib.sha256()
        for each in (device.platform, device.version, device.name, device.driver, *texts):
            digest.update(each.encode() + b"\0")
        return digest.hexdigest()[:16]


def kernel_of(program: cl.Program, name: str, *arguments: Any) -> cl.Kernel:
    """A kernel of its own, with its arguments set for good."""
    kernel = cl.Kernel(program, name)
    kernel.set_args(*arguments)
    return kernel


@contextmanager
def _remarks_unheard() -> Iterator[None]:
    """A compiler's remarks on sources that it takes are nobody's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield
