"""The OpenCL lanes choose their devices, and refuse to run by name."""

from __future__ import annotations

import pytest

from caldrix.models.builder import ProgramBuilder
from caldrix.models.encoder_program import EncoderBuilder
from caldrix.models.lane import LaneOptions, LaneUnavailable, available_lanes, find_lane
from caldrix_opencl.devices import Device
from caldrix_opencl.lane import HipLane, HostLane

RADEON = Device("AMD Accelerated Parallel Processing", "gfx1100", "1", True, 24 * 2**30)
OTHER_GPU = Device("Somebody's OpenCL", "gpu", "1", True, 2**30)
PROCESSOR = Device("Portable Computing Language", "cpu", "1", False, 2**30)


def test_each_lane_takes_its_own_devices() -> None:
    found = (RADEON, OTHER_GPU, PROCESSOR)
    assert HipLane().choose(found) == [RADEON]
    assert HostLane().choose(found) == [PROCESSOR]


def test_only_amd_gpus_verify_drafts() -> None:
    assert (HipLane().verifies_drafts, HostLane().verifies_drafts) == (True, False)


def test_lanes_are_found_by_name_and_refuse_what_they_cannot_run() -> None:
    assert set(available_lanes()) >= {"cpu", "hip", "host"}
    b = ProgramBuilder("none", vocab_size=1, max_context=1)
    program = b.logits(b.select(b.embed("e", 1)), "e")
    seeing = EncoderBuilder("none", rows=1)
    seeing.input(1)
    tower = seeing.build()
    for name in ("hip", "host"):
        with pytest.raises(LaneUnavailable, match=f"the {name} lane .* --backend cpu"):
            find_lane(name).compile(program, {}, LaneOptions(context=1))
        with pytest.raises(LaneUnavailable, match=f"the {name} lane .* vision .* --backend cpu"):
            find_lane(name).compile_encoder(tower, {}, LaneOptions(context=1))
    with pytest.raises(LaneUnavailable, match="installed: cpu, hip, host"):
        find_lane("abacus")
