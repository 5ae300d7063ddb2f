"""The CPU device, which keeps what it compiles for other tests."""

import pytest
from waiting import PATIENCE_S

from tilewright.tuner.devices.cpu.device import CpuDevice


@pytest.fixture(scope="module")
def device(shared_cache):
    device = CpuDevice(cache=shared_cache / "host", run_timeout_s=PATIENCE_S)
    yield device
    device.close()
