"""Every variant, dtype and option at twelve shapes, by both compilers: benchmarks/gpu_check.py's check as a test."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices import open_device

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def gpu_check():
    path = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["nvrtc", "pycuda"])
def device(gpu, request):
    device = open_device("cuda:0", request.param)
    yield device
    device.close()


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_default_and_random_configurations_are_right(device, gpu_check, kernel):
    count = 2 if device.environment.compiler == "nvrtc" else 1  # nvcc takes 30 times as long
    counts, failures = gpu_check.check(device, kernel, count, random.Random(2))
    variants = {f"{variant.name} {dtype}" for variant in kernel.variants for dtype in kernel.dtypes}
    assert failures == []
    assert set(counts) == variants
