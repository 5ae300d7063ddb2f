"""What verification says of a source with a fault in it, on the CPU device."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from mutants.faults import SOURCES, Fault
from mutants.table import Row
from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.verify import verify_configuration
from tilewright.tuner.outcome import Outcome

SHAPES: dict[str, list[tuple[dict[str, int], str, dict[str, bool | str]]]] = {
    "gemm": [
        ({"m": 33, "n": 29, "k": 47}, "float32", {}),
        ({"m": 19, "n": 37, "k": 65, "batch": 2, "ldc": 40, "ldb": 38}, "float32", {"beta_zero": False}),
        ({"m": 24, "n": 24, "k": 24}, "float32", {}),  # where one array may be both operands
    ],
    "gemv": [
        ({"m": 33, "n": 1029}, "float32", {}),
        ({"m": 65, "n": 131}, "float32", {"beta_zero": False}),
        ({"m": 64, "n": 131}, "float32", {"trans_a": True}),
    ],
    "softmax": [({"m": 9, "n": 2100}, "float32", {}), ({"m": 9, "n": 300}, "float32", {})],
    "rms_norm": [({"m": 9, "n": 300}, "float32", {})],
    "layer_norm": [({"m": 9, "n": 301}, "float32", {})],
    "add_rms_norm": [({"m": 9, "n": 300}, "float32", {})],
    "linear": [
        ({"m": 19, "n": 33, "k": 47}, "float32", {}),
        ({"m": 19, "n": 33, "k": 47}, "float32", {"activation": "relu"}),
    ],
    "linear_gated": [({"m": 19, "n": 33, "k": 47}, "float16", {})],
    "linear_quantized": [({"m": 3, "n": 9, "k": 2048}, "bfloat16", {"weights": "int4"})],
    "conv2d": [
        (
            {"batch": 2, "height": 9, "width": 7, "channels": 3, "filters": 5, "kernel_h": 3, "kernel_w": 3}
            | {"padding": 1, "padding_w": 2, "dilation": 2},
            "float32",
            {},
        )
    ],
    "classifier": [({"m": 5, "k": 33, "h": 17, "n": 10}, "float32", {})],
}
"""The problems that a kernel is verified at, which are odd and small."""


def judged(folder: Path, only: str = "") -> Iterator[Row]:
    """A row for each fault, `folder` being an empty one for copies; `only`: a kernel's name."""
    device = CpuDevice()
    for place, faults in SOURCES.items():
        name, variant = place.split()
        if only and only != name:
            continue
        kernel = catalogue().get(name)
        refused = caught_by(device, kernel, variant)
        if refused:
            raise ValueError(f"{place} is refused without a fault: {refused}")
        for fault in faults:
            changed = planted(kernel, fault, folder)
            yield Row(place, fault.file, fault.what, caught_by(device, changed, variant))
    device.close()


def planted(kernel: Kernel, fault: Fault, folder: Path) -> Kernel:
    """The kernel with the fault in a copy of all sources; raises ValueError where the old text is not there."""
    copy = folder / "kernels"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kernel.folder.parent, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (copy / fault.file).read_text(encoding="utf-8")
    if fault.old not in text:
        raise ValueError(f"{fault.file} does not contain {fault.old!r}")
    (copy / fault.file).write_text(text.replace(fault.old, fault.new, 1), encoding="utf-8")
    return dataclasses.replace(kernel, folder=copy / kernel.folder.name, include_folders=(copy / "include",))


def caught_by(device: CpuDevice, kernel: Kernel, variant: str) -> str:
    """The first verdict against the variant's default configuration, with the kind of inputs; empty where it passes."""
    problems = [kernel.problem(*asked) for asked in SHAPES[kernel.name]]
    served = [problem for problem in problems if kernel.space(problem, device.model.limits, [variant]).defaults()]
    if not served:
        raise ValueError(f"{kernel.name} {variant} serves none of its problems")
    return next(filter(None, (_verdict(device, kernel, problem, variant) for problem in served)), "")


def _verdict(device: CpuDevice, kernel: Kernel, problem: Problem, variant: str) -> str:
    space = kernel.space(problem, device.model.limits, [variant])
    with closing(device.bench(kernel, problem, seed=11)) as bench:
        try:
            verification = verify_configuration(bench, bench.compile(space.defaults()[0]))
        except TrialFailure as failure:
            if failure.outcome is Outcome.COMPILE_FAILED:
                raise ValueError(f"no fault, for it does not compile: {failure.log}") from failure
            return f"{failure.outcome}: {failure.log.splitlines()[0][:60] if failure.log else ''}"
    return "" if verification.is_right else f"wrong result, {verification.inputs}"
