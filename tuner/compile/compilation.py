"""A compilation before and after: source and definitions, the cubin and what it takes of the machine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.outcome import Resources

Compiler = Literal["nvrtc", "pycuda"]

OPTIONS = ("-std=c++17",)
"""Given to both compilers. Neither relaxes arithmetic: `--use_fast_math` would change what is verified."""

NVRTC_OPTIONS = (*OPTIONS, "--ptxas-options=-v", "--no-cache")
"""Where a driver is, NVRTC (12.9 and later) keeps a cache of its own, and answers from it without ptxas's log."""

NVCC_OPTIONS = (*OPTIONS, "-Xptxas=-v")

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Compilation:
    """What to compile: all that the cubin depends on except the compiler's version."""

    source: str
    definitions: tuple[tuple[str, str], ...]
    arch: str
    entry: str
    compiler: Compiler = "nvrtc"

    @classmethod
    def of(
        cls, kernel: Kernel, problem: Problem, configuration: Configuration, arch: str, compiler: Compiler
    ) -> Compilation:
        """The compilation of one configuration of a kernel for one problem; a variant may add to the architecture."""
        arch += kernel.variant(configuration.variant).architecture_suffix
        macros = kernel.definitions(problem, configuration)
        source = kernel.source(configuration.variant)
        return cls(source, tuple(sorted(macros.items())), arch, kernel.entry, compiler)

    def key(self) -> str:
        """SHA-256 of everything that decides the cubin, the compiler's version included; raises NoCompilerError."""
        facts = [self.source, self.definitions, self.arch, self.entry, self.compiler]
        options = NVRTC_OPTIONS if self.compiler == "nvrtc" else NVCC_OPTIONS
        text = json.dumps([*facts, compiler_version(self.compiler), options])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Compiled:
    """A cubin; its registers, static shared memory and spills (no occupancy: that needs the launch); log; time."""

    cubin: bytes
    resources: Resources = field(default_factory=Resources)
    log: str = ""
    compile_ms: float = 0.0


def arch_of(compute_capability: tuple[int, int]) -> str:
    """The compiler's name of a compute capability: (9, 0) gives "sm_90"."""
    major, minor = compute_capability
    return f"sm_{major}{minor}"


def read_resources(log: str, entry: str) -> Resources:
    """Registers, static shared memory and spills of `entry` by ptxas's verbose log; None where it has no number.

    The log's shared memory leaves out the 1 KiB that the driver reserves from 8.0 on (the cubin's section holds it).
    """
    start = log.find(f"Compiling entry function '{entry}'")
    end = log.find("Compiling entry function '", start + 1)
    part = log[start : end if end > 0 else len(log)] if start >= 0 else ""
    registers, shared, spills = _REGISTERS.search(part), _SHARED.search(part), _SPILLS.search(part)
    if registers is None:
        return Resources()
    return Resources(
        registers=int(registers[1]),
        shared_bytes=int(shared[1]) if shared else 0,
        spill_bytes=int(spills[1]) + int(spills[2]) if spills else None,
    )


@cache
def compiler_version(compiler: Compiler) -> str:
    """For instance "13.0.88"; raises NoCompilerError where the compiler is not on this machine."""
    if compiler == "nvrtc":
        return nvrtc.version()
    path = shutil.which("nvcc")
    if path is None:
        raise NoCompilerError("nvcc was not found on PATH; install the CUDA toolkit, or use --compiler nvrtc")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    version = re.search(r"V(\d+\.\d+\.\d+)", text)
    return version[1] if version else text.strip().splitlines()[-1]
