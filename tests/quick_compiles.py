"""Flags with which the CPU device's programs compile in a fifth of the time; in tests they run once."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilewright.tuner.devices.cpu.build import default_cache, host_identity
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, MODES, HostCompiler, find_compiler, shim_hash
from tilewright.tuner.errors import NoCompilerError

HEADER = "cuda_host.h"
LEVELS = {"fast": "-Og", "library": "-O1"}
"""Libraries run launches of many blocks, and would take longer than -Og saves."""


def quick_modes() -> dict[str, tuple[str, ...]]:
    """The flags of each mode of LEVELS; with g++, the header that every program begins with is compiled before."""
    quick = {mode: tuple(flag.replace("-O3", level) for flag in MODES[mode]) for mode, level in LEVELS.items()}
    try:
        compiler = find_compiler()
    except NoCompilerError:
        return quick
    if compiler.name != "g++":
        return quick
    common = [flag for flag in compiler.flags("fast") if flag not in MODES["fast"]]
    return {mode: (*flags, f"-I{_precompiled(compiler, [*common, *flags])}") for mode, flags in quick.items()}


def _precompiled(compiler: HostCompiler, flags: Sequence[str]) -> Path:
    """The folder of the precompiled header, which g++ takes where all flags are the same, and else passes over."""
    identity = f"{compiler}{flags}{host_identity()}{shim_hash()}"
    folder = default_cache().parent / "precompiled" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / f"{HEADER}.gch"
    if not header.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / header.name
            compiled = [flag for flag in flags if not flag.startswith(("-Wl,", "-shared"))]  # nothing is linked
            command = [*compiler.command, *compiled, "-x", "c++-header", str(HOST_FOLDER / HEADER), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True)
            made.replace(header)
    return folder
