"""The roof over a kernel on a device, and how near a time comes to it (Williams, Waterman, Patterson, 2009)."""

from __future__ import annotations

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.device import DeviceModel

TF32 = "tf32"
"""Among the peaks of a device model: tensor cores on TF32, dense."""

SPLIT_COST = 1.5
"""As long as how many TF32 products one with float32 accuracy takes, at least: three of parts in FP16, at twice the
speed."""


def roof_gflops(
    model: DeviceModel, dtype: str, flops: int, bytes_moved: int, accuracy: str | None = None
) -> float | None:
    """GFLOP/s that neither the peak nor the memory allows to exceed; None where the device's peaks are not known.

    The peak is that of the arithmetic that `accuracy` admits, the option of that name; None: the CUDA cores'.
    Peak and bandwidth are the data sheet's: what a copy measures is no limit, since reading alone is faster (4.24
    against 4.52 TB/s on an H200, docs/measuring.md). A kernel that does no arithmetic has no roof in FLOPs: None.
    """
    peak, gb_per_s = _peak(model, dtype, accuracy), model.datasheet_gb_per_s
    if peak is None or gb_per_s is None or flops <= 0 or bytes_moved <= 0:
        return None
    return min(peak, flops / bytes_moved * gb_per_s)


def _peak(model: DeviceModel, dtype: str, accuracy: str | None) -> float | None:
    peaks = model.datasheet_gflops
    peak, cost = peaks.get(dtype), {"tf32": 1.0, "fp32": SPLIT_COST}.get(accuracy or "")
    if peak is None or cost is None or dtype != "float32":
        return peak
    return max(peak, peaks.get(TF32, 0.0) / cost)


def percent_of_roof(kernel: Kernel, problem: Problem, model: DeviceModel, time_ms: float) -> float | None:
    """The percentage of the roof that this time reaches; None where the roof is unknown.

    Over 100 is possible: from the L2 cache data comes faster than the memory's bandwidth.
    """
    flops = kernel.flops(problem)
    accuracy = problem.options.get("accuracy")
    admitted = None if accuracy is None else str(accuracy)
    roof = roof_gflops(model, problem.dtype, flops, kernel.bytes_moved(problem), admitted)
    return None if roof is None else 100 * gflops(flops, time_ms) / roof


def gflops(flops: int, time_ms: float) -> float:
    """GFLOP/s of one launch."""
    return flops / time_ms / 1e6


def gb_per_s(bytes_moved: int, time_ms: float) -> float:
    """GB/s of one launch, 1 GB = 1e9 bytes."""
    return bytes_moved / time_ms / 1e6
