"""What a device is to the tuner: its model and limits, its environment, and a bench to evaluate one problem on."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compiled
from tilewright.tuner.errors import TunerError
from tilewright.tuner.loop.measure import DEFAULT_PLAN, Clock, MeasurementPlan, evaluate_here
from tilewright.tuner.loop.outcome import L2, DeviceState, Evaluation, Executable, Verification


@dataclass(frozen=True)
class DeviceModel:
    """A product: its slug (`nvidia-h200`, `cpu:amd-epyc-9b14`), name, limits and peaks.

    Peaks are None where nobody knows or measured them. Bandwidth is decimal: 1 GB = 1e9 bytes.
    """

    slug: str
    name: str
    kind: Literal["cuda", "cpu"]
    limits: Limits
    l2_bytes: int
    datasheet_gflops: dict[str, float]  # by dtype, and "tf32" of the tensor cores where that is known
    datasheet_gb_per_s: float | None
    measured_gb_per_s: float | None = None


@dataclass(frozen=True)
class Environment:
    """What a time depends on beside the device model; part of every result's key."""

    driver: str
    toolkit: str
    compiler: str  # "nvrtc", "pycuda", "triton" or the host compiler's name
    compiler_version: str
    runtime: str  # "PyCUDA 2026.1", or the shim's version on the CPU device
    clocks: str  # "default", or the application clocks that are set

    def with_triton(self, version: str) -> Environment:
        """The same device's for kernels that Triton compiles, or interprets on a CPU."""
        changed = replace(self, compiler="triton", compiler_version=version)
        return replace(changed, runtime="interpreter") if self.driver == "host" else changed

    @property
    def hash(self) -> str:
        """SHA-256 of all fields, hexadecimal."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class DeviceMemory(Protocol):
    """A memory of the device's own, which this process can write and read."""

    def allocate(self, size_bytes: int) -> Any:
        """Memory that is freed with the object; int() of it is the address. Raises OutOfMemoryError."""

    def upload(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copies host memory there."""

    def download(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copies from there into `data`."""


class Bench(ABC):
    """One problem set up on one device: inputs uploaded, reference computed once. Not thread-safe.

    A device defines the abstract methods and overrides those of the others that it does better.
    Every method raises TrialFailure for what the configuration did wrong, and TunerError for anything else.
    """

    compiles_ahead: ClassVar[bool] = False
    """Whether `compile_ahead` compiles in the background."""

    @property
    def compilers(self) -> int:
        """How many it compiles at a time, where it takes more while it evaluates one; else 0."""
        return 0

    @property
    def compilations(self) -> int:
        """How many compilations, under way or waiting, keep all of these busy."""
        return self.compilers

    @property
    def memory(self) -> DeviceMemory | None:
        """The device's memory; None where the device computes in the host's, or is in another process."""
        return None

    @abstractmethod
    def compile(self, configuration: Configuration) -> Executable:
        """The executable; TrialFailure(COMPILE_FAILED) with the compiler's log."""

    @abstractmethod
    def verify(self, executable: Executable) -> Verification:
        """One launch with poisoned outputs, compared with the float64 reference; kinds of inputs take turns."""

    @abstractmethod
    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """`count` times of one launch, in ms; short kernels are batched inside a sample. No warm-up of its own."""

    @abstractmethod
    def close(self) -> None:
        """Frees the arrays and ends every process of the bench's own."""

    def evaluate(
        self,
        configuration: Configuration,
        ranking_l2: str,
        plan: MeasurementPlan = DEFAULT_PLAN,
        incumbent_ms: float | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> Evaluation:
        """A whole trial, see `measure.evaluate_here`."""
        return evaluate_here(self, configuration, ranking_l2, plan, incumbent_ms, clock=clock)

    def begin(
        self, configuration: Configuration, ranking_l2: str, plan: MeasurementPlan, incumbent_ms: float | None
    ) -> Callable[[], Evaluation]:
        """Starts a trial ahead of the end of the one before, where `compilers` are several; what waits for its end."""
        return partial(self.evaluate, configuration, ranking_l2, plan, incumbent_ms)

    def verify_each_kind(self, executable: Executable) -> tuple[Verification, ...] | None:  # noqa: ARG002
        """One verification for each kind of inputs; None where there is one kind, or the result cannot be read."""
        return None

    def library(self) -> Executable | None:
        """The library's call for this problem (`sample` takes it), or None where the device has none."""
        return None

    def library_name(self) -> str | None:
        """For instance "cuBLAS 13.0.2 (cublasSgemm, FP32)"."""
        return None

    def state(self) -> DeviceState:
        """Clock and temperature now, where they can be read."""
        return DeviceState()

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:  # noqa: B027 - nothing is a good default
        """Starts compiling these and returns at once. `compile` waits for them; failures show there."""

    def ready(self, configurations: Sequence[Configuration], *, wait: bool) -> list[Configuration]:
        """Those that are known to be compiled or to have failed; with `wait`, at least one to be tried next."""
        return list(configurations) if wait else []

    def drop(self, configurations: Sequence[Configuration]) -> None:  # noqa: B027 - likewise
        """Does not compile these where that has not begun: they are not tried any more."""

    def load(self, configuration: Configuration, compiled: Compiled) -> Executable:  # noqa: ARG002
        """The executable of a cubin made in another process; TrialFailure where the device refuses it."""
        raise TunerError("this device cannot load cubins")

    def forget(self, executable: Executable) -> None:  # noqa: B027 - likewise
        """Frees what is held for an executable before `close` does."""


class Device(Protocol):
    """One device of this machine."""

    @property
    def uuid(self) -> str:
        """GPU UUID, or a stable name of this host's CPU."""

    @property
    def model(self) -> DeviceModel:
        """Its product, with limits."""

    @property
    def environment(self) -> Environment:
        """Driver, toolkit, compiler."""

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> Bench:
        """A bench with fresh random inputs; raises OutOfMemoryError where they do not fit."""

    def close(self) -> None:
        """Gives the device back."""
