"""Lanes hip and host: the same kernels on an AMD GPU, and on a CPU device without one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager

from caldrix.models.encoder_program import EncoderProgram
from caldrix.models.lane import Encoder, Executor, LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix.weights.blocks import FORMATS, is_quantized
from caldrix.weights.tensor import Tensor
from caldrix_cpu.lane import CpuLane
from caldrix_opencl.devices import Device, chosen, devices, is_installed


class OpenClLane(ABC):
    """What both lanes share; a subclass chooses its devices."""

    name: str
    verifies_drafts: bool
    picks = True
    usual_rows = 8

    def __init__(self, number: int | None = None) -> None:
        """For the device of that number among the lane's, else the one with most memory."""
        self._number = number

    def at(self, number: int) -> OpenClLane:
        """The lane on the device of that number."""
        return type(self)(number)

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        """An executor on the lane's device; its memory is given back when the block is left.

        Raises LaneUnavailable for a device that is missing or too small, and for what no kernel
        does.
        """
        device = self.device()
        self._refuse(program, options)
        from caldrix_opencl.compiled import opencl_executor

        return opencl_executor(program, weights, options, device)

    def compile_encoder(
        self, program: EncoderProgram, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Encoder]:
        """The cpu lane's: a tower runs on the processor, and the text model on the device.

        Raises LaneUnavailable for what does not fit into this machine's memory.
        """
        self._refuse_options(options)
        options.progress.note(
            f"images are looked at by the processor: the {self.name} lane computes the text model"
        )
        return CpuLane().compile_encoder(program, weights, options)

    def describe(self) -> Mapping[str, object]:
        """The devices that the lane would choose from, or what is missing."""
        try:
            found = self._found()
            used = chosen(found, None, self.name)
        except LaneUnavailable as refusal:
            return {"runs models": "no", "missing": str(refusal)}
        facts: dict[str, object] = {"runs models": f"on {used.name}"}
        for index, device in enumerate(found):
            facts.update(device.facts(f"{self.name}:{index}"))
        return facts

    def device(self) -> Device:
        """The device that models run on. Raises LaneUnavailable."""
        return chosen(self._found(), self._number, self.name)

    def _found(self) -> Sequence[Device]:
        return self.choose(devices()) if is_installed() else ()

    @abstractmethod
    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        """The devices of this lane."""

    def batches(self, formats: Set[str]) -> bool:
        """Whatever the weights are kept in."""
        return True

    def _refuse(self, program: Program, options: LaneOptions) -> None:
        self._refuse_options(options)

    def _refuse_options(self, options: LaneOptions) -> None:
        for flag, value in (
            ("--threads", options.threads),
            ("--weight-budget", options.weight_budget),
        ):
            if value is not None:
                raise LaneUnavailable(
                    f"the {self.name} lane has no {flag}, and {value} was asked for; leave it out"
                )


class HipLane(OpenClLane):
    """AMD GPUs."""

    name = "hip"
    verifies_drafts = True

    def batches(self, formats: Set[str]) -> bool:
        """Those that are no integers with scales."""
        return not any(name in FORMATS and is_quantized(FORMATS[name]) for name in formats)

    def _refuse(self, program: Program, options: LaneOptions) -> None:
        if program.states:
            raise LaneUnavailable(
                f"the hip lane runs no {program.family} model; use --backend cpu, or host"
            )
        super()._refuse(program, options)

    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        """GPUs of AMD."""
        return [device for device in found if device.is_gpu and device.is_amd]


class HostLane(OpenClLane):
    """A CPU device: the same code without the hardware."""

    name = "host"
    verifies_drafts = False

    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        """CPU devices."""
        return [device for device in found if not device.is_gpu]
