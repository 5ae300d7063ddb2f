"""One configuration verified on a device."""

from contextlib import closing

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Device
from tilewright.tuner.outcome import Verification


def verified(device: Device, kernel: Kernel, problem: Problem, configuration: Configuration) -> Verification:
    """What the bench says of it, with the inputs that are timed."""
    with closing(device.bench(kernel, problem, seed=5)) as bench:
        return bench.verify(bench.compile(configuration))
