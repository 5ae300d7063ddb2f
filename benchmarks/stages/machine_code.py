"""What of a kernel's machine code stays the same when a parameter or an axis of the problem changes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_nvrtc

Code = dict[str, tuple[int, str]]
"""By function: bytes of its machine code, and their SHA-256."""


def functions_of(cubin: bytes) -> Code:
    """The functions of a cubin, which is a 64-bit ELF file with one section `.text.NAME` for each."""
    (at,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + place * size) for place in range(count)]
    names = cubin[sections[names_at][4] :]
    found = {}
    for name_at, _, _, _, offset, length in sections:
        name = names[name_at : names.index(b"\0", name_at)].decode()
        if name.startswith(".text."):
            digest = hashlib.sha256(cubin[offset : offset + length]).hexdigest()
            found[name.removeprefix(".text.")] = (length, digest)
    return found


def code_of(kernel: Kernel, problem: Problem, configuration: Configuration, arch: str) -> Code:
    """The functions that NVRTC makes of a configuration."""
    work = Compilation.of(kernel, problem, configuration, arch, "nvrtc")
    return functions_of(compile_nvrtc(work.source, dict(work.definitions), work.arch, work.entry).cubin)


def part_kept(before: Code, after: Code) -> float:
    """The part of the code's bytes that lies in functions which are the same in both."""
    same = sum(length for name, (length, digest) in before.items() if after.get(name) == (length, digest))
    return round(same / sum(length for length, _ in before.values()), 3)


def kept_parts(
    kernel: Kernel, problem: Problem, limits: Limits, configuration: Configuration, arch: str
) -> Iterator[tuple[str, float]]:
    """By parameter and by axis that can change alone, the part of the machine code that is as it was."""
    before = code_of(kernel, problem, configuration, arch)
    space = kernel.space(problem, limits, [configuration.variant])
    near = [space.feasible[int(place)] for place in (space.feasible.changes(configuration) == 1).nonzero()[0]]
    for name, value in configuration.items:
        changed = next((other for other in near if other.values[name] != value), None)
        if changed is not None:
            yield name, part_kept(before, code_of(kernel, problem, changed, arch))
    for axis, size in problem.axes:
        larger = kernel.problem({**dict(problem.axes), axis: 2 * size}, problem.dtype, dict(problem.option_items))
        if configuration in kernel.space(larger, limits, [configuration.variant]):
            yield axis, part_kept(before, code_of(kernel, larger, configuration, arch))
