"""A device without hardware whose variants hang, crash or break its context, in a real process."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Reference, Tensor, Variant
from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.device import Bench, DeviceModel, Environment
from tilewright.tuner.errors import NoDeviceError, OutOfMemoryError, TrialFailure
from tilewright.tuner.outcome import DeviceState, Outcome, Resources, Verification

BEHAVIOURS = ("well", "hang", "crash", "sticky", "wrong", "uncompilable", "unexpected", "crash_in_compile")


def make_kernel(name: str = "copy", folder: Path = Path(__file__).parent) -> Kernel:
    def reference(problem, arrays, _scalars):
        return Reference(arrays["x"].astype(np.float64), np.abs(arrays["x"]).astype(np.float64), 1)

    return Kernel(
        name=name,
        doc="y = x",
        folder=folder,
        axes=("n",),
        dtypes=("float32",),
        options=(),
        arguments=(
            Tensor("x", "input", lambda p: (p.shape["n"],)),
            Tensor("y", "output", lambda p: (p.shape["n"],)),
        ),
        variants=tuple(Variant(b, "copy.cu", lambda _v, _p: Launch((1, 1, 1), (32, 1, 1))) for b in BEHAVIOURS),
        flops=lambda _p: 1,
        bytes_moved=lambda _p: 1,
        reference=reference,
        example_shape={"n": 8},
    )


@dataclass(frozen=True)
class Opener:
    """`marks` gets a file for each process that opened the device, so that a test can count them."""

    marks: Path
    refuses_after: int = 1_000_000  # from this opening on, the process is killed while it opens the device
    kind: str = "cpu"
    library_hangs: bool = False

    def open(self):
        (self.marks / f"opened-{os.getpid()}").touch()
        if len(list(self.marks.glob("opened-*"))) > self.refuses_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return MisbehavingDevice(self)


@dataclass(frozen=True)
class Absent:
    def open(self):
        raise NoDeviceError("there is none")


class MisbehavingDevice:
    def __init__(self, opener):
        self.opener = opener
        self.uuid = "FAKE-1"
        limits = Limits((9, 0), 1, 1 << 30)
        self.model = DeviceModel("fake", "Fake", opener.kind, limits, 1 << 20, {}, None)
        self.environment = Environment("", "", "nvrtc", "0", "none", "default")

    def bench(self, kernel, problem, seed):
        if problem.shape["n"] > 1_000_000:
            raise OutOfMemoryError("n is too large")
        if problem.shape["n"] == 666:
            os.kill(os.getpid(), signal.SIGKILL)
        return MisbehavingBench(self.opener, seed)

    def close(self):
        (self.opener.marks / f"closed-{os.getpid()}").touch()


@dataclass(frozen=True)
class Program:
    behaviour: str
    resources: Resources = field(default_factory=lambda: Resources(registers=32))
    compile_ms: float = 1.0


class MisbehavingBench(Bench):
    def __init__(self, opener, seed):
        self.opener, self.seed = opener, seed

    def compile(self, configuration):
        if configuration.variant == "uncompilable":
            raise TrialFailure(Outcome.COMPILE_FAILED, "line 1: error")
        if configuration.variant == "crash_in_compile":
            os.kill(os.getpid(), signal.SIGSEGV)
        return Program(configuration.variant)

    def load(self, configuration, compiled):
        return Program(configuration.variant, Resources(registers=len(compiled.cubin)), compiled.compile_ms)

    def verify(self, executable):
        match executable.behaviour:
            case "hang":
                threading.Event().wait()
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "sticky":
                raise TrialFailure(Outcome.LAUNCH_FAILED, "illegal address", sticky=True)
            case "unexpected":
                raise ZeroDivisionError("nobody thought of this")
        wrong = 3 if executable.behaviour == "wrong" else 0
        return Verification(float(wrong), wrong, (1,) if wrong else None)

    def sample(self, executable, l2, count):
        return [self.seed + 0.5] * count

    def library(self, *, at_any_size=False):
        if self.opener.library_hangs:
            threading.Event().wait()

    def state(self):
        return DeviceState(os.getpid(), None)

    def forget(self, executable):
        (self.opener.marks / "forgotten").touch()

    def close(self):
        (self.opener.marks / "bench-closed").touch()
