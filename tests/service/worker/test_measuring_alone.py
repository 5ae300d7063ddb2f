"""A device is let go of when the last process that has a context on it is gone."""

from __future__ import annotations

import time
import uuid

import pytest

from tilewright.service.device_lock import DeviceBusyError, host_lock
from tilewright.tuner.child import HELD, Child


@pytest.mark.parametrize("host_wide", [False, True])
def test_a_child_that_outlives_its_runner_holds_the_device(host_wide):
    gpu = f"GPU-{uuid.uuid4()}"
    with host_lock(gpu, "measuring", host_wide=host_wide):
        child = Child(time.sleep, (60,), dies_with_parent=True, uses_device=True)
        bystander = Child(time.sleep, (60,))
    try:
        assert not HELD
        with pytest.raises(DeviceBusyError, match=gpu), host_lock(gpu, "measuring", wait_s=0, host_wide=host_wide):
            pass
        child.kill()
        with host_lock(gpu, "measuring", wait_s=0, host_wide=host_wide):
            pass
    finally:
        child.kill()
        bystander.kill()
