"""A compilation before and after: source and definitions, the cubin and what it takes of the machine."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from tilewright.kernels.kernel import Kernel, Launch, unqualified
from tilewright.kernels.problem import Problem
from tilewright.kernels.sources.source import without_functions
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import signature
from tilewright.tuner.compile import cccl, nvrtc, std_headers
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.outcome import Resources

Compiler = Literal["nvrtc", "pycuda", "triton"]

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
    """One compilation: everything that the cubin depends on except the compiler's version.

    `shared`: the module of launches that are the same for other configurations, a compilation and a cubin of its own.
    """

    source: str
    definitions: tuple[tuple[str, str], ...]
    arch: str
    entry: str
    compiler: Compiler = "nvrtc"
    flags: tuple[str, ...] = ()  # of the kernel's own
    signature: tuple[str, ...] = ()  # of a Triton function, whose source does not say its types
    file_name: str = ""  # of a Triton source, for its errors
    shared: Compilation | None = None

    @classmethod
    def of(
        cls, kernel: Kernel, problem: Problem, configuration: Configuration, arch: str, compiler: Compiler
    ) -> Compilation:
        """The compilation of one configuration of a kernel for one problem; a variant may add to the architecture.

        `compiler` is for CUDA sources.
        """
        variant = kernel.variant(configuration.variant)
        arch += variant.architecture_suffix
        macros = kernel.definitions(problem, configuration)
        source = kernel.source(variant.name)
        if kernel.is_triton:
            types, file_name = signature(kernel.arguments, problem), f"{kernel.name}/{variant.source}"
            macro_items = tuple(sorted(macros.items()))
            return cls(source, macro_items, arch, kernel.entry, "triton", signature=types, file_name=file_name)
        own = cls(source, tuple(sorted(macros.items())), arch, kernel.entry, compiler, kernel.compiler_flags)
        entries = variant.entries(kernel.entry, is_shared=True)
        if not entries:
            return own
        others = variant.entries(kernel.entry, is_shared=False)
        usual = tuple(sorted(kernel.definitions(problem, variant.space().default(), entries[0]).items()))
        shared = replace(own, source=_without(source, tuple(others)), definitions=usual, entry=entries[0])
        return replace(own, source=_without(source, tuple(entries)), shared=shared)

    def key(self) -> str:
        """SHA-256 of everything that decides its own cubin, the compiler's version too; raises NoCompilerError."""
        facts = [self.source, self.definitions, self.arch, self.entry, self.compiler]
        options = {"nvrtc": NVRTC_OPTIONS, "pycuda": NVCC_OPTIONS, "triton": self.signature}[self.compiler]
        if self.compiler == "nvrtc" and (given := std_headers.fingerprint(self.source)):
            facts.append(given)
        if self.compiler == "nvrtc" and cccl.is_used(self.source):
            facts.append(cccl.version())
        text = json.dumps([*facts, compiler_version(self.compiler), (*options, *self.flags)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CompiledLaunch:
    """A compiler's decisions about a launch: Triton chooses shared memory itself, and may add warps.

    `scratch_bytes` of global memory are for each program of the grid.
    """

    symbol: str
    threads: int
    shared_bytes: int
    scratch_bytes: int = 0

    def applied(self, launch: Launch) -> Launch:
        """The launch with the compiler's decisions applied."""
        return replace(launch, block=(self.threads, 1, 1), shared_bytes=self.shared_bytes)

    def workspace_bytes(self, launch: Launch) -> int:
        """Bytes of scratch memory of the whole grid."""
        return self.scratch_bytes * math.prod(launch.grid)


HIDDEN_ADDRESSES = 2
"""What a function compiled by Triton takes behind its arguments: its scratch memory and a profiler's, 0 for neither."""


@dataclass(frozen=True)
class Compiled:
    """A cubin; its registers, static shared memory and spills (no occupancy: that needs the launch); log; time.

    `launch`: where the compiler has decided something of it, which is not the declaration's to say. `shared`: the cubin
    of the compilation's `shared`, empty where it has none.
    """

    cubin: bytes
    resources: Resources = field(default_factory=Resources)
    log: str = ""
    compile_ms: float = 0.0
    launch: CompiledLaunch | None = None
    shared: bytes = field(default=b"", repr=False)

    def function(self, entry: str) -> tuple[bytes, str]:
        """The cubin that has the function, and the function's name in it; the own cubin where none has it."""
        symbol = _symbol(self.shared, entry)
        return (self.shared, symbol) if symbol else (self.cubin, symbol_of(self.cubin, entry))


def arch_of(compute_capability: tuple[int, int]) -> str:
    """The compiler's name of a compute capability: (9, 0) gives "sm_90"."""
    major, minor = compute_capability
    return f"sm_{major}{minor}"


def symbol_of(cubin: bytes, entry: str) -> str:
    """The name by which the cubin has a function: `entry` itself, or what C++ has made of it without `extern "C"`.

    A cubin holds one instance of a template, which was asked for by `name<arguments>`.
    """
    return _symbol(cubin, entry) or entry


def _symbol(cubin: bytes, entry: str) -> str | None:
    if f".text.{entry}\0".encode() in cubin:
        return entry
    name = unqualified(entry)
    found = re.search(rb"\.text\.(_Z(?:N\w*?)?%d%b\w+)\0" % (len(name), name.encode()), cubin)
    return found[1].decode() if found else None


_without = lru_cache(maxsize=64)(without_functions)
"""One text for all configurations: a hash of it is made once."""


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


def triton_version() -> str:
    """Triton's version, such as "3.9.0", without importing it; raises NoCompilerError where it is not installed."""
    try:
        return version("triton")
    except PackageNotFoundError:
        raise NoCompilerError("Triton is not installed here; install it: pip install 'tilewright[triton]'") from None


@cache
def compiler_version(compiler: Compiler) -> str:
    """The compiler's version, such as "13.0.88"; raises NoCompilerError where the compiler is not on this machine."""
    if compiler == "nvrtc":
        return nvrtc.version()
    if compiler == "triton":
        return triton_version()
    path = shutil.which("nvcc")
    if path is None:
        raise NoCompilerError("nvcc was not found on PATH; install the CUDA toolkit, or use --compiler nvrtc")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found[1] if found else text.strip().splitlines()[-1]
