"""Compiles a source in this process, by NVRTC or by PyCUDA's nvcc."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tilewright.tuner.compile import cccl, nvrtc, std_headers
from tilewright.tuner.compile.compilation import (
    NVRTC_OPTIONS,
    Compilation,
    Compiled,
    Compiler,
    read_resources,
    symbol_of,
)
from tilewright.tuner.compile.triton_process import compiled_apart
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome

_HOST_FUNCTION = "host functions are not allowed in JIT mode"
"""NVRTC's words on a function of the host, which nvcc passes over. As one of the device it is there and not called."""

_AMBIGUOUS = "more than one instance of overloaded function"
"""NVRTC's words on a function of <cmath> that is called with a whole number, or with numbers of two types."""

_LOG_CHARACTERS = 16_000
"""Kept of a log, from its beginning: a template error's tail repeats itself, and a trial's row is not a file."""


def default_compiler() -> Compiler:
    """NVRTC where it can be loaded, else PyCUDA's nvcc."""
    return "nvrtc" if nvrtc.is_available() else "pycuda"


def compile_nvrtc(
    source: str, definitions: Mapping[str, str], arch: str, entry: str, flags: Sequence[str] = ()
) -> Compiled:
    """The cubin by NVRTC, in this process; raises TrialFailure(COMPILE_FAILED) with the log."""
    options = [f"--gpu-architecture={arch}", *NVRTC_OPTIONS]
    options += [f"-D{name}={value}" for name, value in sorted(definitions.items())]
    options += flags
    uses_cccl = cccl.is_used(source)
    of_toolkit = nvrtc.header_folders() if std_headers.SYSTEM_INCLUDE.search(source) else ()
    folders = cccl.folders() if uses_cccl else of_toolkit
    options += [f"-I{folder}" for folder in folders]
    headers = std_headers.given_headers(source, has_toolkit=bool(folders))
    if uses_cccl:
        headers |= cccl.own_headers()
    if "__int128" in source:
        options.append("--device-int128")
    ahead = std_headers.prelude(source)
    text = f'{ahead}#line 1 "kernel.cu"\n{source}' if ahead else source
    start = time.perf_counter()
    template = entry if "<" in entry else None
    try:
        try:
            cubin, log = _by_nvrtc(text, options, template, headers)
        except nvrtc.NvrtcError as error:
            if _AMBIGUOUS not in str(error):
                raise
            text = f'{std_headers.OVERLOADS}{ahead}#line 1 "kernel.cu"\n{source}'
            cubin, log = _by_nvrtc(text, options, template, headers)
    except nvrtc.NvrtcError as error:
        log = f"{cccl.remedy(source, str(error))}{error}"
        raise TrialFailure(Outcome.COMPILE_FAILED, log[:_LOG_CHARACTERS]) from error
    compile_ms = (time.perf_counter() - start) * 1e3
    return Compiled(cubin, read_resources(log, symbol_of(cubin, entry)), log[:_LOG_CHARACTERS], compile_ms)


def _by_nvrtc(
    source: str, options: Sequence[str], template: str | None, headers: Mapping[str, str]
) -> tuple[bytes, str]:
    """The cubin and the log; functions of the host that the source has are taken for the device's."""
    try:
        return nvrtc.compile_cubin(source, options, template, headers)
    except nvrtc.NvrtcError as error:
        if _HOST_FUNCTION not in str(error):
            raise
        return nvrtc.compile_cubin(source, [*options, "-default-device"], template, headers)


def compile_now(work: Compilation) -> Compiled:
    """The cubin by the compiler that `work` names, in this process; raises TrialFailure(COMPILE_FAILED).

    Triton's in another one, since its source is code that runs.
    """
    if work.compiler == "triton":
        return compiled_apart(work)
    if work.compiler == "nvrtc":
        return compile_nvrtc(work.source, dict(work.definitions), work.arch, work.entry, work.flags)
    if "<" in work.entry:
        raise TrialFailure(Outcome.COMPILE_FAILED, f"{work.entry} is a template, which takes --compiler nvrtc")
    from tilewright.tuner.compile import nvcc  # noqa: PLC0415 - needs PyCUDA, which NVRTC's users may lack

    return nvcc.compile_nvcc(work)
