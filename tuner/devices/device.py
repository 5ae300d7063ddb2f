"""A device as the tuner sees it: model and limits, environment, and a bench to evaluate one problem on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.tuner.loop.bench import Bench, DeviceMemory

TF32 = "tf32"
"""Among the peaks of a device model: tensor cores on TF32, dense."""

FP64_TENSOR = "fp64_tensor"
"""Among the peaks of a device model: tensor cores on FP64."""

HALF_TENSOR = "half_tensor"
"""Among the peaks of a device model: tensor cores on BF16 and FP16, dense, with sums in FP32."""


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
    """Driver, toolkit, compiler and clocks, on which a time depends too; part of every result's key."""

    driver: str
    toolkit: str
    compiler: str  # "nvrtc", "pycuda", "triton" or the host compiler's name
    compiler_version: str
    runtime: str  # "PyCUDA 2026.1", or the shim's version on the CPU device
    clocks: str  # "default", or the application clocks that are set

    def with_triton(self, version: str) -> Environment:
        """The environment of this device for kernels that Triton compiles, or interprets on a CPU."""
        changed = replace(self, compiler="triton", compiler_version=version)
        return replace(changed, runtime="interpreter") if self.driver == "host" else changed

    @property
    def hash(self) -> str:
        """SHA-256 of all fields, hexadecimal."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class Device(Protocol):
    """One device of this machine."""

    @property
    def uuid(self) -> str:
        """GPU UUID, or a stable name of this host's CPU."""

    @property
    def model(self) -> DeviceModel:
        """The device's model, with its limits."""

    @property
    def environment(self) -> Environment:
        """The driver, toolkit and compiler here."""

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> Bench:
        """A bench with fresh random inputs; raises OutOfMemoryError where they do not fit."""

    def close(self) -> None:
        """Gives the device back."""


__all__ = ["FP64_TENSOR", "HALF_TENSOR", "TF32", "Bench", "Device", "DeviceMemory", "DeviceModel", "Environment"]
