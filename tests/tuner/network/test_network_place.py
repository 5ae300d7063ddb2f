"""A network kept ready on the CPU device: compared with NumPy before it is used, in a process that may die."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.devices.local import DeviceSpec
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.network.network import Network
from tilewright.tuner.network.place import NetworkExtension, WrongNetworkError, place_network, problems
from tilewright.tuner.runtime.choice import TargetDevice, default_choice
from tilewright.tuner.runtime.errors import LaunchError

NETWORK = Network.random((33, 17, 5), seed=1)
X = np.random.default_rng(3).random((2, 33), np.float32)


class Otherwise(Network):
    """A network whose kernels do not compute what it says."""

    def forward(self, x):
        return 1 - super().forward(x)


def safe(network, batch, model):
    place = TargetDevice(model.slug, model.limits)
    chosen = {p: default_choice(catalogue().get(p.kernel), p, place) for p in problems(network, batch)}
    return {problem: choice.configuration for problem, choice in chosen.items()}


def test_a_launch_for_each_layer_and_softmax():
    assert [(p.kernel, p.shape, p.options.get("activation")) for p in problems(NETWORK, 2)] == [
        ("linear", {"m": 2, "n": 17, "k": 33}, "relu"),
        ("linear", {"m": 2, "n": 5, "k": 17}, "none"),
        ("softmax", {"m": 2, "n": 5}, None),
    ]


def test_kernels_that_compute_something_else_are_found_before_they_answer():
    device = CpuDevice()
    odd = Otherwise(NETWORK.layers)
    with pytest.raises(WrongNetworkError, match="from NumPy's"):
        place_network(device, odd, 2, safe(odd, 2, device.model))


def test_a_configuration_that_the_space_does_not_have_is_refused():
    device = CpuDevice()
    chosen = safe(NETWORK, 2, device.model)
    first, *_, softmax = chosen
    with pytest.raises(LaunchError, match="not in the search space"):
        place_network(device, NETWORK, 2, chosen | {first: chosen[softmax]})


def test_a_device_in_another_process_computes_it_and_a_new_process_is_told_anew():
    with closing(IsolatedDevice(DeviceSpec("cpu"))) as device:
        with pytest.raises(TunerError, match="no extension"):
            device.call("call_extension", X)
        device.call("extend", NetworkExtension(NETWORK, 2, safe(NETWORK, 2, device.model)))
        passed = device.call("call_extension", X)
        np.testing.assert_allclose(passed.probabilities, NETWORK.forward(X), atol=2e-6)
        assert passed.kernels_us is None
        assert passed.pass_us > 0
        os.kill(device.child_pid, signal.SIGKILL)
        with pytest.raises(TrialFailure, match="SIGKILL"):
            device.call("call_extension", X)
        device.ensure_child()
        with pytest.raises(TunerError, match="no extension"):
            device.call("call_extension", X)
