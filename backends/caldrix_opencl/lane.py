"""Lanes hip and host: which device each would run on. Neither has kernels in this version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from caldrix.models.encoder_program import EncoderProgram
from caldrix.models.lane import Encoder, Executor, LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix.weights.tensor import Tensor
from caldrix_opencl.devices import Device, devices, is_installed

_AMD = "AMD"


class OpenClLane(ABC):
    """What both lanes share; a subclass chooses its devices."""

    name: str
    verifies_drafts: bool

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        """Raises LaneUnavailable: this version runs no model on OpenCL."""
        raise LaneUnavailable(
            f"the {self.name} lane runs no model in this version; use --backend cpu"
        )

    def compile_encoder(
        self, program: EncoderProgram, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Encoder]:
        """Raises LaneUnavailable: images are read on the cpu lane alone."""
        raise LaneUnavailable(
            f"the {self.name} lane runs no vision tower in this version; use --backend cpu"
        )

    def describe(self) -> Mapping[str, object]:
        """The devices that the lane would choose from."""
        if not is_installed():
            return {"runs models": "no", "devices": "pip install 'caldrix[opencl]' to see them"}
        chosen = self.choose(devices())
        return {"runs models": "no", "devices": [f"{d.name} ({d.platform})" for d in chosen]}

    @abstractmethod
    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        """The devices of this lane."""


class HipLane(OpenClLane):
    """AMD GPUs."""

    name = "hip"
    verifies_drafts = True

    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        """GPUs of AMD's platforms."""
        return [device for device in found if device.is_gpu and _AMD in device.platform]


class HostLane(OpenClLane):
    """A CPU device: the same code without the hardware."""

    name = "host"
    verifies_drafts = False

    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        """CPU devices."""
        return [device for device in found if not device.is_gpu]
