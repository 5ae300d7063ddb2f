"""A row for every variant of some kernels: CPU time to compile it, by stage, and what configurations have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stages.machine_code import kept_parts

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation

Row = dict[str, Any]

A100 = Limits((8, 0), 108, 80 << 30, max_shared_bytes=163 << 10, shared_bytes_per_multiprocessor=164 << 10)
H200 = Limits((9, 0), 132, 140 << 30, max_shared_bytes=227 << 10, shared_bytes_per_multiprocessor=228 << 10)
DEVICES: Mapping[str, Limits] = {"sm_90": H200, "sm_80": A100}


def problems(names: Sequence[str], gemm_shape: Mapping[str, int]) -> Iterator[tuple[Kernel, Problem]]:
    """Each kernel at its example shape, gemm at this one, with every dtype; float16 compiles as bfloat16 does."""
    for name in names:
        kernel = catalogue().get(name)
        for dtype in kernel.dtypes:
            if dtype != "float16":
                yield kernel, kernel.problem(gemm_shape if name == "gemm" else kernel.example_shape, dtype)


def rows(
    given: Iterator[tuple[Kernel, Problem]],
    drawn: Callable[[Kernel, Problem, str, Limits], Sequence[Configuration]],
    measured: Callable[[Sequence[Compilation]], Row],
    *,
    with_kept: bool,
) -> Iterator[Row]:
    """The rows; `drawn` says which configurations stand for a variant, `measured` what they cost."""
    for kernel, problem in given:
        for arch, limits in DEVICES.items():
            for variant in kernel.usable_variants(problem, limits):
                chosen = drawn(kernel, problem, variant.name, limits)
                works = [Compilation.of(kernel, problem, configuration, arch, "nvrtc") for configuration in chosen]
                row: Row = {"kernel": kernel.name, "shape": dict(problem.axes), "dtype": problem.dtype}
                row |= {"variant": variant.name, "arch": works[0].arch, "source_bytes": len(works[0].source)}
                row |= measured(works)
                if with_kept and arch == "sm_90":
                    row["kept"] = dict(kept_parts(kernel, problem, limits, chosen[0], arch))
                yield row
