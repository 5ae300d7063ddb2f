from __future__ import annotations

import pytest

from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.cuda.model import limits_of, model_of, slug_of

H200 = Limits((9, 0), 132, 150 << 30, 1024, 232448, 233472)
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "WARP_SIZE": 32,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "L2_CACHE_SIZE": 62914560,
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
}


def test_an_h200_by_its_attributes():
    model = model_of("NVIDIA H200", ATTRIBUTES, 150 << 30, 4197.0)
    assert model.slug == "nvidia-h200"
    assert model.limits == H200
    assert model.datasheet_gflops["float32"] == pytest.approx(66908, rel=1e-4)  # the data sheet says 67 TFLOP/s
    assert model.datasheet_gflops["float64"] == pytest.approx(33454, rel=1e-4)  # and 34
    assert model.datasheet_gflops["fp64_tensor"] == pytest.approx(66908, rel=1e-4)  # and 67
    assert model.datasheet_gb_per_s == 4800.0


def test_unknown_products_have_a_computed_bandwidth_unknown_generations_no_peak():
    model = model_of("NVIDIA Future 1", {**ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR": 99}, 1 << 30, None)
    assert model.datasheet_gb_per_s == pytest.approx(4917, rel=1e-3)
    assert model.datasheet_gflops == {}
    assert limits_of(ATTRIBUTES, 1).compute_capability == (9, 0)


def test_slugs():
    assert slug_of("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert slug_of("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"
