"""The CUDA device: a GPU's context, with a cache of cubins, that problems are set up on."""

from __future__ import annotations

from functools import partial

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.cache import CubinCache, compiled_by
from tilewright.tuner.compile.compilation import Compiler
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.bench import CudaBench
from tilewright.tuner.devices.cuda.context import CudaContext


class CudaDevice(CudaContext):
    """See `device.Device`. Compiles in this process, by way of the cache."""

    def __init__(self, gpu: nvml.Gpu, compiler: Compiler = "nvrtc", cache: CubinCache | None = None) -> None:
        super().__init__(gpu, compiler, partial(compiled_by, cache))

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> CudaBench:
        """The problem set up on this GPU; raises OutOfMemoryError."""
        return CudaBench(self, kernel, problem, seed)
