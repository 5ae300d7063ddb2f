"""The CPU device, which keeps what it compiles for the tests of one module."""

import pytest
from waiting import PATIENCE_S

from tilewright.tuner.devices.cpu.device import CpuDevice


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    device = CpuDevice(cache=tmp_path_factory.mktemp("host-programs"), run_timeout_s=PATIENCE_S)
    yield device
    device.close()
