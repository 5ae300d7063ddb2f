"""Theoretical occupancy: how many blocks of a kernel one multiprocessor holds at once."""

from __future__ import annotations

from tilewright.kernels.problem import Limits

# Allocation granularity, compute capability 7.5 to 12.x: CUDA's cuda_occupancy.h.
_REGISTERS_PER_WARP_UNIT = 256
_SUB_PARTITIONS = 4


def reserved_shared_bytes(compute_capability: tuple[int, int]) -> int:
    """Bytes of each block's shared memory that the driver reserves (CUDA programming guide, 8.0 and later)."""
    return 1024 if compute_capability >= (8, 0) else 0


def shared_bytes_unit(compute_capability: tuple[int, int]) -> int:
    """Shared memory is given out in multiples of this."""
    return 128 if compute_capability >= (8, 0) else 256


def blocks_per_multiprocessor(registers: int, shared_bytes: int, threads: int, limits: Limits) -> int:
    """Blocks of `threads` threads that fit at once; `shared_bytes` is static and dynamic, without reserved memory."""
    warps = _divide_up(threads, limits.warp_size)
    by_threads = limits.max_threads_per_multiprocessor // (warps * limits.warp_size)
    counts = [limits.max_blocks_per_multiprocessor, by_threads]
    if registers:
        per_warp = _round_up(registers * limits.warp_size, _REGISTERS_PER_WARP_UNIT)
        # A warp's registers come from one of four sub-partitions and cannot straddle two.
        held = limits.registers_per_multiprocessor // _SUB_PARTITIONS // per_warp * _SUB_PARTITIONS
        counts.append(held // warps)
    used = shared_bytes + reserved_shared_bytes(limits.compute_capability)
    used = _round_up(used, shared_bytes_unit(limits.compute_capability))
    if used:
        counts.append(limits.shared_bytes_per_multiprocessor // used)
    return min(counts)


def occupancy(registers: int, shared_bytes: int, threads: int, limits: Limits) -> float:
    """Resident warps over the most that a multiprocessor holds, 0 to 1."""
    warps = _divide_up(threads, limits.warp_size)
    blocks = blocks_per_multiprocessor(registers, shared_bytes, threads, limits)
    return blocks * warps / (limits.max_threads_per_multiprocessor // limits.warp_size)


def _divide_up(value: int, unit: int) -> int:
    return -(-value // unit)


def _round_up(value: int, unit: int) -> int:
    return _divide_up(value, unit) * unit
