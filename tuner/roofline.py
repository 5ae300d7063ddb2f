"""The roof over a kernel on a device, and how near a time comes to it (Williams, Waterman, Patterson, 2009)."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernels.dtypes import HALF, sum_dtype
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.device import FP64_TENSOR, HALF_TENSOR, TF32, DeviceModel

SPLIT_COST = 1.5
"""As long as how many TF32 products one with float32 accuracy takes, at least: three of parts in FP16, at twice the
speed."""


OVER_PEAK = 1.1
"""How far over the data sheet's FLOP/s a time may be: clocks may be higher than the sheet's."""

LEAST_MS = {"cuda": 2e-4, "cpu": 1e-5}
"""No launch takes less: some 400 cycles of a GPU pass between a read of memory and the write that needs it, and a call
on a CPU takes tens of nanoseconds. The least that was recorded on an H200 is 15 times as much."""

GHZ = {"cuda": 4.0, "cpu": 7.0}
MOST_FLOPS, MOST_BYTES = {"cuda": 4096, "cpu": 128}, {"cuda": 256, "cpu": 256}
"""The most FLOPs and bytes of a multiprocessor in a cycle (of a core, since times of the CPU device are of one thread):
twice what tensor cores of compute capability 9.0 do in TF32, and what caches give. No device of 2026 has more, nor a
higher clock."""

_TENSOR = {"float64": FP64_TENSOR} | dict.fromkeys(HALF, HALF_TENSOR)


def roof_gflops(
    model: DeviceModel, dtype: str, flops: int, bytes_moved: int, accuracy: str | None = None
) -> float | None:
    """GFLOP/s that neither the peak nor the memory allows to exceed; None where the device's peaks are not known.

    The peak is that of the arithmetic that `accuracy` admits, the option of that name, which in float64 only says that
    the kernel is a matrix product; None: the CUDA cores'. In half types it is that of the tensor cores.
    Peak and bandwidth are the data sheet's: what a copy measures is no limit, since reading alone is faster (4.24
    against 4.52 TB/s on an H200, docs/measuring/service.md). A kernel without arithmetic has no roof in FLOPs: None.
    """
    peak, gb_per_s = peak_gflops(model.datasheet_gflops, dtype, accuracy), model.datasheet_gb_per_s
    if peak is None or gb_per_s is None or flops <= 0 or bytes_moved <= 0:
        return None
    return min(peak, flops / bytes_moved * gb_per_s)


def peak_gflops(peaks: Mapping[str, float], dtype: str, accuracy: str | None) -> float | None:
    """The data sheet's peak of the arithmetic that `accuracy` admits; None where the data sheet does not say it."""
    peak, cost = peaks.get(sum_dtype(dtype)), {"tf32": 1.0, "fp32": SPLIT_COST}.get(accuracy or "")
    if peak is None or (cost is None and dtype not in HALF):
        return peak
    tensor = peaks.get(_TENSOR[dtype], 0.0) if dtype in _TENSOR else peaks.get(TF32, 0.0) / (cost or 1.0)
    return max(peak, tensor)


def percent_of_roof(kernel: Kernel, problem: Problem, model: DeviceModel, time_ms: float) -> float | None:
    """The percentage of the roof that this time reaches; None where the roof is unknown.

    Over 100 is possible: from the L2 cache data comes faster than the memory's bandwidth.
    """
    flops, bytes_moved = kernel.flops(problem), kernel.bytes_moved(problem)
    if flops is None or bytes_moved is None:
        return None
    rates_ = gflops(flops, time_ms), gb_per_s(bytes_moved, time_ms)
    ratio = roof_ratio(model, problem.dtype, *rates_, _admitted(problem))
    return None if ratio is None else 100 * ratio


def roof_ratio(
    model: DeviceModel, dtype: str, gflops: float, gb_per_s: float, accuracy: str | None = None
) -> float | None:
    """How near these rates come to the roof, which is 1; None where the roof is unknown.

    That of a kernel without arithmetic, which only moves data, is the memory's bandwidth.
    """
    if gflops == 0:
        return gb_per_s / model.datasheet_gb_per_s if gb_per_s and model.datasheet_gb_per_s else None
    # The roof depends on the ratio of work to traffic only, so that rates of one second serve as amounts.
    roof = roof_gflops(model, dtype, round(gflops * 1e9), round(gb_per_s * 1e9), accuracy)
    return None if roof is None else gflops / roof


def floor_ms(kernel: Kernel, problem: Problem, model: DeviceModel) -> float:
    """The least time of a launch on any device of this kind with as many multiprocessors, data sheet or not."""
    units = model.limits.multiprocessors if model.kind == "cuda" else 1
    flops, bytes_moved = kernel.flops(problem) or 0, kernel.bytes_moved(problem) or 0
    cycles = max(flops / MOST_FLOPS[model.kind], bytes_moved / MOST_BYTES[model.kind]) / units
    return max(LEAST_MS[model.kind], cycles / GHZ[model.kind] / 1e6)


def least_ms(kernel: Kernel, problem: Problem, model: DeviceModel) -> float:
    """The least time of a launch on this device model: by the arithmetic peak, where that is known, and `floor_ms`.

    Memory bandwidth is not a bound, since caches may be faster.
    """
    flops = kernel.flops(problem) or 0
    peak = roof_gflops(model, problem.dtype, flops, 1, _admitted(problem))
    return max(floor_ms(kernel, problem, model), 0.0 if peak is None else flops / peak / 1e6)


def too_fast(kernel: Kernel, problem: Problem, model: DeviceModel, time_ms: float) -> str | None:
    """The reason why no device of the model can be that fast; None where one can."""
    floor = floor_ms(kernel, problem, model)
    if time_ms < floor:
        return f"{time_ms:g} ms is too fast: no device of its kind takes less than {floor:.3g} ms"
    if time_ms * OVER_PEAK < least_ms(kernel, problem, model):
        return f"{time_ms:g} ms is faster than the device's peak allows"
    return None


def _admitted(problem: Problem) -> str | None:
    accuracy = problem.options.get("accuracy")
    return None if accuracy is None else str(accuracy)


def rates(kernel: Kernel, problem: Problem, time_ms: float) -> dict[str, float | None]:
    """`gflops` and `gb_per_s` of one launch; None where the kernel does not count its work."""
    flops, bytes_moved = kernel.flops(problem), kernel.bytes_moved(problem)
    return {
        "gflops": None if flops is None else gflops(flops, time_ms),
        "gb_per_s": None if bytes_moved is None else gb_per_s(bytes_moved, time_ms),
    }


def gflops(flops: int, time_ms: float) -> float:
    """GFLOP/s of one launch."""
    return flops / time_ms / 1e6


def gb_per_s(bytes_moved: int, time_ms: float) -> float:
    """GB/s of one launch, 1 GB = 1e9 bytes."""
    return bytes_moved / time_ms / 1e6
