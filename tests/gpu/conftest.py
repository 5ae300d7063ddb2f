from __future__ import annotations

import pytest

from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.runtime import Runtime


@pytest.fixture(scope="session")
def gpu():
    """The first GPU of this machine."""
    found = nvml.gpus()
    if not found:
        pytest.skip("no NVIDIA GPU on this machine")
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    return found[0]


@pytest.fixture(scope="module")
def device(gpu):
    from tilewright.tuner.devices.cuda.device import CudaDevice  # noqa: PLC0415 - PyCUDA is only where GPUs are

    device = CudaDevice(gpu)
    yield device
    device.close()


@pytest.fixture(scope="module")
def drv(gpu):
    """PyCUDA, with the primary context current, which torch and CuPy use too."""
    import pycuda.driver as drv  # noqa: PLC0415 - only where GPUs are

    drv.init()
    context = drv.Device(0).retain_primary_context()
    context.push()
    yield drv
    context.pop()
    context.detach()


@pytest.fixture(scope="module")
def torch(drv):
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy(drv):
    return pytest.importorskip("cupy")


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    return Runtime()
