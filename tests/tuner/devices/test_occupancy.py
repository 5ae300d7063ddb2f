from __future__ import annotations

import pytest

from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.occupancy import blocks_per_multiprocessor, occupancy

H200 = Limits((9, 0), 132, 150 << 30, 1024, 232448, 233472)
TURING = Limits((7, 5), 40, 16 << 30, 1024, 65536, 65536, 65536, 1024, 16)


# Expected values by the driver's cuOccupancyMaxActiveBlocksPerMultiprocessor on an H200; tests/gpu compares more.
@pytest.mark.parametrize(
    ("registers", "shared_bytes", "threads", "limits", "blocks"),
    [
        (32, 0, 1024, H200, 2),
        (33, 0, 1024, H200, 1),
        (255, 0, 256, H200, 1),
        (16, 0, 32, H200, 32),
        (16, 48000, 128, H200, 4),
        (94, 16384, 128, H200, 5),
        (32, 1024, 1024, TURING, 1),
        (64, 20000, 128, TURING, 3),
        (255, 0, 1024, H200, 0),
    ],
)
def test_blocks_on_a_multiprocessor(registers, shared_bytes, threads, limits, blocks):
    assert blocks_per_multiprocessor(registers, shared_bytes, threads, limits) == blocks


def test_occupancy_is_a_share_of_resident_warps():
    assert occupancy(32, 0, 256, H200) == 1.0
    assert occupancy(94, 16384, 128, H200) == pytest.approx(5 * 4 / 64)
    assert occupancy(255, 0, 1024, H200) == 0.0
