"""Scripts adopted in a test's folder, and whether the kernels that they become are right on the CPU device."""

from __future__ import annotations

import sys
from pathlib import Path

from tilewright.kernels.own import own_kernel
from tilewright.tuner.adopt.adopt import Adoption, adopt
from tilewright.tuner.devices.cpu.device import CpuDevice


def adopted(folder: Path, text: str, *arguments: str, name: str = "script.py", **options) -> Adoption:
    script = folder / name
    script.write_text(text)
    options = {"python": sys.executable, "limit_s": 250, "limit_bytes": 1 << 20} | options
    return adopt(script, arguments, target=folder / "made", **options)


def verified(folder: Path, shape: dict[str, int]) -> list[bool]:
    """Whether each configuration of the folder's kernel computes what is right, on the CPU device."""
    kernel, device = own_kernel(folder), CpuDevice()
    problem = kernel.problem(shape, kernel.dtypes[0])
    bench = device.bench(kernel, problem, seed=1)
    try:
        space = kernel.space(problem, device.model.limits)
        return [bench.verify(bench.compile(one)).is_right for one in [space.defaults()[0], space.feasible[-1]]]
    finally:
        bench.close()
        device.close()
