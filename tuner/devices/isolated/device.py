"""A device behind a child process, and the benches that call it there; process.py explains how failures end."""

from __future__ import annotations

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.isolated.bench import IsolatedBench, PrecompilingBench
from tilewright.tuner.devices.isolated.process import ChildFailedError, Deadlines, DeviceProcess
from tilewright.tuner.errors import DeviceLostError, TrialFailure


class IsolatedDevice(DeviceProcess):
    """Any device, behind the same protocol. With a pool, configurations are compiled there; `close` closes it too."""

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> IsolatedBench:
        """The problem set up in the child; raises OutOfMemoryError, and DeviceLostError after two losses."""
        kind = PrecompilingBench if self.pool is not None and self.model.kind == "cuda" else IsolatedBench
        try:
            return kind(self, kernel, problem, seed)
        except TrialFailure:
            # Lost while setting up, before any configuration of ours ran: once is bad luck.
            try:
                return kind(self, kernel, problem, seed)
            except TrialFailure as failure:
                raise DeviceLostError(failure.log) from failure


__all__ = ["ChildFailedError", "Deadlines", "IsolatedBench", "IsolatedDevice", "PrecompilingBench"]
