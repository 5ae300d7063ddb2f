"""The CUDA device: a GPU's context, with a cache of cubins, that problems are set up on."""

from __future__ import annotations

from functools import partial

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.cache import CubinCache, compiled_by
from tilewright.tuner.compile.compilation import Compiler
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.bench import CudaBench
from tilewright.tuner.devices.cuda.cases import Cases, fit_at_once, have_first_rows
from tilewright.tuner.devices.cuda.context import CudaContext
from tilewright.tuner.errors import OutOfMemoryError


class CudaDevice(CudaContext):
    """See `device.Device`. Compiles in this process, by way of the cache.

    The inputs of a family's largest size are kept for its smaller ones, until another problem comes.
    """

    def __init__(self, gpu: nvml.Gpu, compiler: Compiler = "nvrtc", cache: CubinCache | None = None) -> None:
        super().__init__(gpu, compiler, partial(compiled_by, cache))
        self._kept: Cases | None = None

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> CudaBench:
        """The problem set up on this GPU; raises OutOfMemoryError."""
        if not have_first_rows(kernel, problem):
            if not problem.at_launch:
                self._forget()
            return CudaBench(self, kernel, problem, seed)
        try:
            return CudaBench(self, kernel, problem, seed, self._cases(kernel, problem, seed))
        except OutOfMemoryError:
            self._forget()
            return CudaBench(self, kernel, problem, seed)

    def close(self) -> None:
        """See `CudaContext`."""
        self._forget()
        super().close()

    def _cases(self, kernel: Kernel, problem: Problem, seed: int) -> Cases | None:
        """The cases that are kept, where they serve that problem or it is one that they can be made for."""
        if self._kept is None or not self._kept.serve(kernel, problem, seed):
            if not fit_at_once(kernel, problem, self.free_bytes()):
                return None
            self._forget()
            self._kept = Cases(self, kernel, problem, seed, is_kept=True)
        return self._kept

    def _forget(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()
