"""nvcc by PyCUDA, where NVRTC cannot be loaded or was not asked for."""

from __future__ import annotations

import tempfile
import time
import warnings

import pycuda.compiler
import pycuda.driver as drv

from tilewright.tuner.compile.compilation import NVCC_OPTIONS, Compilation, Compiled, read_resources, symbol_of
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome


def compile_nvcc(work: Compilation) -> Compiled:
    """The cubin by `pycuda.compiler` (nvcc), in this process; raises TrialFailure(COMPILE_FAILED) with the log.

    Needs no context. Not thread-safe: nvcc's remarks come as Python warnings.
    """
    options = [*NVCC_OPTIONS, *(f"-D{name}={value}" for name, value in sorted(work.definitions)), *work.flags]
    start = time.perf_counter()
    # PyCUDA leaves its folder behind when nvcc fails, so it gets one inside ours.
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            cubin = pycuda.compiler.compile(
                work.source, options=options, arch=work.arch, no_extern_c=True, cache_dir=False
            )
        except drv.CompileError as error:
            raise TrialFailure(Outcome.COMPILE_FAILED, f"{error.stdout or ''}{error.stderr or ''}".strip()) from error
        finally:
            tempfile.tempdir = before
    log = "\n".join(str(warning.message) for warning in warned)
    return Compiled(cubin, read_resources(log, symbol_of(cubin, work.entry)), log, (time.perf_counter() - start) * 1e3)
