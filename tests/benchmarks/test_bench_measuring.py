from __future__ import annotations

import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.device import CpuDevice

GEMM = catalogue().get("gemm")
TINY = GEMM.problem({"m": 24, "n": 16, "k": 20})
LARGE = GEMM.problem({"m": 2048, "n": 2048, "k": 2048})


@pytest.fixture
def rate(benchmark_module):
    return benchmark_module("rate")


@pytest.fixture
def device():
    device = CpuDevice()
    yield device
    device.close()


def test_the_rate_counts_unique_verified_configurations(rate, device):
    row = rate.ours(device, GEMM, TINY, GEMM.space(TINY, device.model.limits, ["naive"]), 4, seed=1)
    assert (row["configurations"], row["unique"], row["verified"]) == (4, 4, 4)
    assert row["outcomes"] == {"measured": 4}
    assert row["per_second"] == pytest.approx(4 / row["wall_s"], rel=0.05)


def test_kernel_tuner_gets_the_part_of_the_space_that_it_can_launch(rate):
    whole = GEMM.space(LARGE, H200, ["register"])
    common = rate.common_space(GEMM, whole)
    variant = GEMM.variant("register")
    expected = {
        c
        for c in whole.feasible
        if variant.launch(c.values, LARGE).shared_bytes <= 48 * 1024 and not variant.workspace_bytes(c.values, LARGE)
    }
    assert set(common.feasible) == expected
    assert 0 < len(common) < len(whole)
