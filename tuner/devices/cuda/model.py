"""The device model of a GPU: peaks by its data sheet, or computed from its clocks and units."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.device import FP64_TENSOR, HALF_TENSOR, TF32, DeviceModel

# FP32 and FP64 lanes per multiprocessor (CUDA programming guide, "Arithmetic Instructions": results per clock cycle).
_LANES: dict[tuple[int, int], tuple[int, int]] = {
    (7, 5): (64, 2),
    (8, 0): (64, 32),
    (8, 6): (128, 2),
    (8, 7): (128, 2),
    (8, 9): (128, 2),
    (9, 0): (128, 64),
    (10, 0): (128, 64),
    (12, 0): (128, 2),
    (12, 1): (128, 2),
}

# FP64 multiply-adds of the tensor cores per multiprocessor and cycle, where they are faster than the lanes (NVIDIA's
# architecture whitepapers: A100, table 3; H100, table 2).
_FP64_TENSOR: dict[tuple[int, int], int] = {(8, 0): 64, (9, 0): 128}

# Memory bandwidth by NVIDIA's data sheets, GB/s. For others it is computed: two transfers a cycle of the memory clock.
_BANDWIDTH: dict[str, float] = {
    "nvidia-h200": 4800.0,
    "nvidia-h100-80gb-hbm3": 3350.0,
    "nvidia-h100-pcie": 2000.0,
    "nvidia-a100-sxm4-80gb": 2039.0,
    "nvidia-a100-sxm4-40gb": 1555.0,
    "nvidia-a100-80gb-pcie": 1935.0,
    "nvidia-l4": 300.0,
    "nvidia-l40s": 864.0,
    "nvidia-a10": 600.0,
    "tesla-t4": 320.0,
}

# Tensor cores on TF32 without sparsity, GFLOP/s, by NVIDIA's data sheets: half of what some of them state with it.
_TF32_GFLOPS: dict[str, float] = {
    "nvidia-h200": 494_700.0,
    "nvidia-h100-80gb-hbm3": 494_700.0,
    "nvidia-h100-pcie": 378_000.0,
    "nvidia-h100": 494_700.0,
    "nvidia-a100": 156_000.0,
    "nvidia-a100-pcie-40gb": 156_000.0,
    "nvidia-a100-sxm4-80gb": 156_000.0,
    "nvidia-a100-sxm4-40gb": 156_000.0,
    "nvidia-a100-80gb-pcie": 156_000.0,
    "nvidia-l4": 60_000.0,
    "nvidia-l40s": 183_000.0,
    "nvidia-a10": 62_500.0,
}


# Tensor cores on BF16 and FP16 with FP32 sums, without sparsity, GFLOP/s, by the same data sheets: on the GPUs above
# that are not listed here they are exactly twice as fast as on TF32.
_HALF_GFLOPS: dict[str, float] = {
    "nvidia-h200": 989_500.0,
    "nvidia-h100-80gb-hbm3": 989_500.0,
    "nvidia-h100": 989_500.0,
    "nvidia-l4": 121_000.0,
    "nvidia-l40s": 362_000.0,
}


def slug_of(name: str) -> str:
    """The product's name in lower case with hyphens: "NVIDIA H200" gives "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def limits_of(attributes: Mapping[str, int], memory_bytes: int) -> Limits:
    """The limits by the driver's device attributes (their CUDA names, without CU_DEVICE_ATTRIBUTE_)."""
    a = attributes
    return Limits(
        compute_capability=(a["COMPUTE_CAPABILITY_MAJOR"], a["COMPUTE_CAPABILITY_MINOR"]),
        multiprocessors=a["MULTIPROCESSOR_COUNT"],
        memory_bytes=memory_bytes,
        max_threads_per_block=a["MAX_THREADS_PER_BLOCK"],
        max_shared_bytes=a["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"],
        shared_bytes_per_multiprocessor=a["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"],
        registers_per_multiprocessor=a["MAX_REGISTERS_PER_MULTIPROCESSOR"],
        max_threads_per_multiprocessor=a["MAX_THREADS_PER_MULTIPROCESSOR"],
        max_blocks_per_multiprocessor=a["MAX_BLOCKS_PER_MULTIPROCESSOR"],
        warp_size=a["WARP_SIZE"],
        max_grid=(a["MAX_GRID_DIM_X"], a["MAX_GRID_DIM_Y"], a["MAX_GRID_DIM_Z"]),
    )


def model_of(
    name: str, attributes: Mapping[str, int], memory_bytes: int, measured_gb_per_s: float | None
) -> DeviceModel:
    """The device model; peaks that cannot be known are left out."""
    limits, slug = limits_of(attributes, memory_bytes), slug_of(name)
    return DeviceModel(
        slug=slug,
        name=name,
        kind="cuda",
        limits=limits,
        l2_bytes=attributes["L2_CACHE_SIZE"],
        datasheet_gflops=_peak_gflops(limits, attributes["CLOCK_RATE"]) | _tensor_gflops(slug),
        # Of a slice (MIG) neither table nor bus width tells what share of the memory's channels it has.
        datasheet_gb_per_s=None if "-mig-" in slug else _BANDWIDTH.get(slug) or _computed_bandwidth(attributes),
        measured_gb_per_s=measured_gb_per_s,
    )


def _peak_gflops(limits: Limits, clock_khz: int) -> dict[str, float]:
    lanes = _LANES.get(limits.compute_capability)
    if lanes is None or clock_khz <= 0:
        return {}
    # One fused multiply-add a lane and cycle counts as two operations.
    per_lane = limits.multiprocessors * 2 * clock_khz * 1e3 / 1e9
    tensor = _FP64_TENSOR.get(limits.compute_capability)
    peaks = {"float32": lanes[0] * per_lane, "float64": lanes[1] * per_lane}
    return peaks if tensor is None else peaks | {FP64_TENSOR: tensor * per_lane}


def _tensor_gflops(slug: str) -> dict[str, float]:
    tf32 = _TF32_GFLOPS.get(slug)
    return {} if tf32 is None else {TF32: tf32, HALF_TENSOR: _HALF_GFLOPS.get(slug, 2 * tf32)}


def _computed_bandwidth(attributes: Mapping[str, int]) -> float | None:
    clock_khz, width_bits = attributes["MEMORY_CLOCK_RATE"], attributes["GLOBAL_MEMORY_BUS_WIDTH"]
    return clock_khz * 1e3 * 2 * width_bits / 8 / 1e9 or None
