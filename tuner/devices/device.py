"""What a device is to the tuner: its model and limits, its environment, and a bench to evaluate one problem on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, Protocol, runtime_checkable

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.outcome import Resources

L2 = Literal["cold", "warm"]


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
    compiler: str  # "nvrtc", "pycuda" or the host compiler's name
    compiler_version: str
    runtime: str  # "PyCUDA 2026.1", or the shim's version on the CPU device
    clocks: str  # "default", or the application clocks that are set

    @property
    def hash(self) -> str:
        """SHA-256 of all fields, hexadecimal."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class DeviceState:
    """Clock and temperature at one moment, where they can be read."""

    clock_mhz: int | None = None
    temperature_c: int | None = None


@dataclass(frozen=True)
class Verification:
    """The comparison with the reference. `bound_ratio` is the worst error over its bound with c = 1."""

    bound_ratio: float  # inf where a NaN or an unwritten element was found
    wrong: int  # components over the bound
    first_wrong: tuple[int, ...] | None = None
    inputs: str = "normal"  # the kind that was computed with, see arrays.KINDS
    got: float | None = None  # the component there; NaN where nothing was written
    expected: float | None = None  # the reference's

    def message(self) -> str:
        """One sentence for the trial's log."""
        where = f", first at {self.first_wrong}" if self.first_wrong is not None else ""
        if self.got is not None and self.expected is not None:
            where += f": got {self.got:.9g}, expected {self.expected:.9g}"
        inputs = "" if self.inputs == "normal" else f" with {self.inputs} inputs"
        worst = f"worst error is {self.bound_ratio:.3g} of its bound"
        return f"{self.wrong} components are out of bounds{inputs}{where}; {worst}"


class Executable(Protocol):
    """Something that can be launched on the bench's arrays: a compiled configuration, or the library's call."""

    @property
    def resources(self) -> Resources:
        """Registers, shared memory, spills, occupancy."""

    @property
    def compile_ms(self) -> float:
        """Wall time of compiling, 0 from the cache."""


class Bench(Protocol):
    """One problem set up on one device: inputs uploaded, reference computed once. Not thread-safe.

    Every method raises TrialFailure for what the configuration did wrong, and TunerError for anything else.
    """

    def compile(self, configuration: Configuration) -> Executable:
        """The executable; TrialFailure(COMPILE_FAILED) with the compiler's log."""

    def verify(self, executable: Executable) -> Verification:
        """One launch with poisoned outputs, held against the float64 reference; kinds of inputs take turns."""

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """`count` times of one launch, in ms; short kernels are batched inside a sample. No warm-up of its own."""

    def library(self) -> Executable | None:
        """The library's call for this problem (`sample` takes it), or None where the device has none."""

    def library_name(self) -> str | None:
        """For instance "cuBLAS 13.0.2 (cublasSgemm, FP32)"."""

    def state(self) -> DeviceState:
        """Clock and temperature now."""

    def close(self) -> None:
        """Frees the arrays and ends every process of the bench's own."""


@runtime_checkable
class VerifiesEachKind(Protocol):
    """A bench with several kinds of inputs."""

    def verify_each_kind(self, executable: Executable) -> tuple[Verification, ...] | None:
        """One for each kind of inputs; None for a library's call where nothing can look at what it computes."""


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
