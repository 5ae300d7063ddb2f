"""Compiles a source in this process, by NVRTC or by PyCUDA's nvcc."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import NVRTC_OPTIONS, Compilation, Compiled, read_resources
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome

_LOG_CHARACTERS = 16_000
"""Kept of a log, from its beginning: a template error's tail repeats itself, and a trial's row is not a file."""


def compile_nvrtc(source: str, definitions: Mapping[str, str], arch: str, entry: str) -> Compiled:
    """The cubin by NVRTC, in this process; raises TrialFailure(COMPILE_FAILED) with the log."""
    options = [f"--gpu-architecture={arch}", *NVRTC_OPTIONS]
    options += [f"-D{name}={value}" for name, value in sorted(definitions.items())]
    start = time.perf_counter()
    try:
        cubin, log = nvrtc.compile_cubin(source, options)
    except nvrtc.NvrtcError as error:
        raise TrialFailure(Outcome.COMPILE_FAILED, str(error)[:_LOG_CHARACTERS]) from error
    compile_ms = (time.perf_counter() - start) * 1e3
    return Compiled(cubin, read_resources(log, entry), log[:_LOG_CHARACTERS], compile_ms)


def compile_now(work: Compilation) -> Compiled:
    """The cubin by the compiler that `work` names, in this process; raises TrialFailure(COMPILE_FAILED)."""
    if work.compiler == "nvrtc":
        return compile_nvrtc(work.source, dict(work.definitions), work.arch, work.entry)
    from tilewright.tuner.devices.cuda import context as cuda_context  # noqa: PLC0415 - needs PyCUDA, which NVRTC's users may lack

    return cuda_context.compile_pycuda(work.source, dict(work.definitions), work.arch, work.entry)
