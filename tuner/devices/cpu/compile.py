"""The host's C++ compiler and its input: a kernel's source between the shim and its entry."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.tuner.compile.std_headers import without_cuda_headers
from tilewright.tuner.errors import NoCompilerError

HOST_FOLDER = Path(__file__).parent / "host"
MODES = {
    "fast": ("-O3",),
    "library": ("-O3", "-fPIC", "-shared", "-Wl,-Bsymbolic"),  # several live in one process, each with its own runtime
    "address": ("-O1", "-g", "-fsanitize=address", "-DHOST_ASAN"),
    "thread": ("-O1", "-g", "-fsanitize=thread", "-DHOST_TSAN"),
}
"""Compiler flags by mode of the program. The sanitizers' own manuals ask for -O1 and -g."""

UNROLL = 8
"""What a bare `#pragma unroll` means to g++. Eight random configurations of `gemm` at (256, 100, 784), g++ 12,
AMD EPYC: 0.36 s of CPU time a compile, the fastest reaches 18.4 GFLOP/s; with 16 it is 0.77 s and 21.1, with 4 0.33 s
and 14.6. A search is over sooner with 8."""

_DYNAMIC_SHARED = re.compile(
    r"\b(?:extern\b([^;{}=]*?)\b__shared__|__shared__\b([^;{}=]*?)\bextern)\b([^;{}=]*?)\b(\w+)\s*\[\s*\]\s*;"
)
_ALIGNMENT = re.compile(r"\b(?:__align__|alignas)\s*\([^)]*\)|\b__attribute__\s*\(\(.*?\)\)")
_STATIC_SHARED = re.compile(r"\bstatic\s+(?=(?:volatile\s+)?__shared__\b)|(?<=\b__shared__)\s+static\b")
_MEETING = re.compile(
    r"\batomic[A-Z]|\b__threadfence\b|\bvolatile\b|\bstatic\s+(?!const)"
    r"|__device__(?:\s*__align__\s*\(\w+\))?[^;(){}]*[;=\[]"
)
_UNROLL = re.compile(r"^([ \t]*)#[ \t]*pragma[ \t]+unroll[ \t]*\(?(\d*)\)?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler as a command, with the name and version that results are recorded with."""

    command: tuple[str, ...]
    name: str  # "g++", "clang++" or "ziglang"
    version: str

    def flags(self, mode: str) -> list[str]:
        """Flags for a mode. No -ffast-math: it lets a NaN, which marks what was not written, vanish."""
        native = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
        common = ["-std=c++17", native, "-ffp-contract=fast", "-fno-strict-aliasing", "-fno-math-errno", "-w"]
        # Nothing of the C++ library is used: it need not be loaded at every start, and ziglang need not build it.
        # A large frame is touched page by page, so that its overflow meets the guard and not another thread's stack.
        common += ["-fstack-clash-protection", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]
        # Unique symbols are one for the whole process: static arrays of templates, which are of other sizes in another
        # configuration's library.
        common += ["-Wl,--as-needed", "-fno-gnu-unique"] if self.name == "g++" else ["-nostdlib++"]
        if self.name == "ziglang":
            common.append("-fno-sanitize=undefined")  # on by default there
        return [*common, *MODES[mode]]


def find_compiler(named: str | None = None) -> HostCompiler:
    """The compiler with that command, or the first that runs of $CXX, g++, clang++ and the wheel `ziglang`.

    Raises NoCompilerError, with the remedy.
    """
    if named is not None:
        candidates = [shlex.split(named)]
    else:
        candidates = [shlex.split(os.environ.get("CXX", "")), ["g++"], ["clang++"]]
        if importlib.util.find_spec("ziglang"):
            candidates.append([sys.executable, "-P", "-m", "ziglang", "c++"])
    for command in candidates:
        compiler = _identify(tuple(command)) if command else None
        if compiler:
            return compiler
    missing = f"{named!r} does not run" if named is not None else "there is no g++, no clang++ and $CXX names none"
    raise NoCompilerError(f"{missing}: install g++, or the wheel with `pip install tilewright[zig]`")


@functools.cache
def _identify(command: tuple[str, ...]) -> HostCompiler | None:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\d+\.\d+\.\d+", answer.stdout)
    if version is None:
        return None
    names = (("ziglang", "ziglang" in command), ("clang++", "clang" in answer.stdout), ("g++", True))
    return HostCompiler(command, next(name for name, holds in names if holds), version[0])


@functools.cache
def shim_hash() -> str:
    """SHA-256 over the shim's files, hexadecimal: part of every program's key and of the environment."""
    digest = hashlib.sha256()
    for path in sorted(HOST_FOLDER.iterdir()):
        if path.suffix in {".h", ".cpp"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def translation_unit(
    compiler: HostCompiler,
    entries: Sequence[str],
    source: str,
    definitions: Mapping[str, str],
    label: str,
    *,
    constants: Sequence[str] = (),
) -> str:
    """The source behind the shim and ahead of its entries, which are in the order of their launches; constants to fill.

    `label` is the file's name in messages; lines are the source's own. Two spellings change that no macro can:
    `#pragma unroll` for g++, and arrays of dynamic shared memory.
    """
    macros = "".join(f"#define {name} {value}\n" for name, value in definitions.items())
    text = _STATIC_SHARED.sub("", _DYNAMIC_SHARED.sub(_pointer_to_dynamic, without_cuda_headers(source)))
    if compiler.name == "g++":
        text = _UNROLL.sub(lambda found: f"{found[1]}#pragma GCC unroll {found[2] or UNROLL}", text)
    called = ", ".join(f"HOST_ENTRY({entry})" for entry in entries)
    place = definitions.get("AT_LAUNCH", "_-1").rpartition("_")[2]  # of the size among the arguments
    filled = ", ".join([*(f"HOST_CONSTANT({symbol})" for symbol in constants), "HOST_NO_CONSTANT"])
    ends = f"HOST_ENTRIES({called}) HOST_CONSTANTS({filled}) HOST_SIZE_PLACE({place})"
    return f'#include "cuda_host.h"\n{macros}#line 1 "{label}"\n{text}\n{ends}\n'


def _pointer_to_dynamic(found: re.Match[str]) -> str:
    """The declaration of a dynamic shared array, in any order of its words, as a pointer to that memory."""
    words = _ALIGNMENT.sub(" ", f"{found[1] or found[2] or ''} {found[3]}").split()
    kind = " ".join(words)
    return f"{kind}* const {found[4]} = reinterpret_cast<{kind}*>(host_dynamic_shared);"


def blocks_may_meet(source: str) -> bool:
    """Whether a block may read what another one writes: by atomics, fences, volatile, static or global variables."""
    return _MEETING.search(source) is not None
