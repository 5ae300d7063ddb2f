"""tensor_fp16_sm90.cu on the host, Hopper's instructions emulated: launches in order on memory of NumPy's."""

from __future__ import annotations

from pathlib import Path

from contracts.hopper_on_host import MBARRIER, SHARED_MEMORY, WARPGROUP
from contracts.launches_on_host import LaunchesOnHost
from contracts.register_on_host import GLOBAL_MEMORY, beside

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration

_INCLUDE = Path(__file__).parents[2] / "kernels" / "include"

CLUSTER = r"""
#pragma once
#include "common/real.cuh"
#define __cluster_dims__(...)
inline unsigned mapa(unsigned address, unsigned) { return address; }
inline unsigned cluster_ctarank() { return 0; }
inline void cluster_sync() { __syncthreads(); }
inline void st_shared_cluster(unsigned, const uint4&) {}
inline void cluster_arrive() {}
inline void cluster_wait() {}
"""

DEPENDENT_LAUNCH = r"""
#pragma once
inline void launch_dependents() {}
inline void wait_for_launch_before() {}
"""

CP_ASYNC_BULK = r"""
#pragma once
#include "ptx/mbarrier.cuh"
inline void mbarrier_arrive_expect_tx(unsigned, unsigned) {}   // the second copy of a step arrives
inline void mbarrier_arrive_cluster(unsigned barrier, unsigned) { mbarrier_arrive(barrier); }
static bool host_is_second = false;
inline void cp_async_bulk(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  if (threadIdx.x % 32) return;   // a whole warp of the host loads, since lanes wait together
  if (target % 16 || (size_t)source % 16 || bytes % 16) __builtin_trap();
  memcpy(host_at(target), source, bytes);
  if (host_is_second) mbarrier_arrive(barrier);
  host_is_second = !host_is_second;
}
inline void cp_async_bulk_multicast(unsigned, const void*, unsigned, unsigned, unsigned) {}
inline void fence_proxy_async_global() {}
"""

# FP16 by rounding a double to the nearest of its numbers.
HALF = r"""
inline unsigned short host_half(float x) {
  const unsigned short sign = __float_as_uint(x) >> 16 & 0x8000;
  if (x != x) return 0x7fff;
  const double size = fabs((double)x);
  if (size >= 65520) return sign | 0x7c00;
  if (size == 0) return sign;
  int exponent = 0;
  frexp(size, &exponent);
  exponent = exponent - 1 < -14 ? -14 : exponent - 1;
  const unsigned units = (unsigned)nearbyint(ldexp(size, 10 - exponent));   // 1024 to 2048, or less of subnormal ones
  return sign | ((exponent + 14) * 1024 + units);
}
inline float host_decoded(unsigned short bits) {
  const unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent     ? ldexp(1024.0 + fraction, (int)exponent - 25)
                                     : ldexp((double)fraction, -24);
  return (float)(bits & 0x8000 ? -size : size);
}
inline float host_of_half(unsigned short bits) {
  static float decoded[65536];   // the products take each number many times
  static bool is_known = false;
  for (unsigned i = 0; !is_known && i < 65536; ++i) decoded[i] = host_decoded(i);
  is_known = true;
  return decoded[bits];
}
inline unsigned short host_bfloat(float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float host_of_bfloat(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
"""

WGMMA = r"""
#pragma once
#include "parts/split.cuh"
#include "ptx/warpgroup.cuh"
constexpr unsigned SUMS = TILE_N / 2;
inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
template <bool BF16>
inline float host_operand(unsigned long long tile, unsigned line, unsigned k) {
  const unsigned lines = (tile >> 32 & 0x3fff) * 16, start = (tile & 0x3fff) * 16;
  const unsigned at = start + line / 8 * lines + line % 8 * 64 + k * 2;
  const unsigned short bits = *(unsigned short*)host_at(at ^ (at >> 7 & 3) << 4);
  return BF16 ? host_of_bfloat(bits) : host_of_half(bits);
}
template <bool BF16>
inline void wgmma_k16(float (&sum)[SUMS], unsigned long long a, unsigned long long b, unsigned add) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float rows[2][16];
  for (unsigned i = 0; i < 32; ++i) {
    rows[i / 16][i % 16] = host_operand<BF16>(a, warp * 16 + lane / 4 + i / 16 * 8, i % 16);
  }
  for (unsigned i = 0; i < SUMS; ++i) {
    const unsigned column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double total = add ? sum[i] : 0;
    for (unsigned k = 0; k < 16; ++k) total += (double)rows[i / 2 % 2][k] * host_operand<BF16>(b, column, k);
    sum[i] = (float)total;
  }
}
inline void warpgroup_wait_all_but_last() {}
inline void warpgroup_wait(float (&)[SUMS]) {}
"""


def _changed(name: str, *changes: tuple[str, str]) -> str:
    text = (_INCLUDE / name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"{name} has changed: {old}"
        text = text.replace(old, new)
    return text


def headers() -> dict[str, str]:
    """What is found before Tilewright's own."""
    start, end = "template <bool BF16>\n__device__ __forceinline__ unsigned narrowed", "// The parts of two numbers"
    split = _changed("parts/split.cuh")
    split = split[: split.index(start)] + HALF + """
template <bool BF16>
inline unsigned narrowed(float first, float second) {
  return BF16 ? host_bfloat(first) | (unsigned)host_bfloat(second) << 16
              : host_half(first) | (unsigned)host_half(second) << 16;
}
template <bool BF16>
inline void widened(unsigned pair, float& first, float& second) {
  first = BF16 ? host_of_bfloat(pair) : host_of_half(pair);
  second = BF16 ? host_of_bfloat(pair >> 16) : host_of_half(pair >> 16);
}
""" + split[split.index(end) :]  # fmt: skip
    return {
        "common/global_memory.cuh": GLOBAL_MEMORY,
        "parts/multiply.cuh": _changed(  # products are computed at once, and so is their step released
            "parts/multiply.cuh",
            ("before = ring.empty + 8 * ring.at", "release(ring.empty + 8 * ring.at)"),
            ("      release(before);\n", ""),
            ("  release(before);\n", ""),
        ),
        "parts/product.cuh": _changed(
            "parts/product.cuh",
            ("threadIdx.x == 128 * MULTIPLIERS", "threadIdx.x / 32 == 4 * MULTIPLIERS"),
            (
                "const unsigned exchange = start + STAGES * FINE_STAGE;",
                "static float4 space[(EXCHANGED + STAGED) / 16 + 1]; const unsigned exchange = shared_address(space);",
            ),
        ),
        "parts/ring.cuh": _changed(
            "parts/ring.cuh",
            ("227 * 1024 - 2048", "51 * 1024 + 128 * 1024"),  # two steps in BF16
            ("(MOST_SHARED - EXCHANGED - STAGED)", "(MOST_SHARED - 128 * 1024)"),
            ("static_assert(COUNT > SHARERS", "static_assert(COUNT == SHARERS"),
        ),
        "parts/split.cuh": split.replace("#pragma once", '#pragma once\n#include "ptx/shared_memory.cuh"'),
        "parts/wgmma.cuh": WGMMA,
        "ptx/cluster.cuh": CLUSTER,
        "ptx/cp_async_bulk.cuh": CP_ASYNC_BULK,
        "ptx/dependent_launch.cuh": DEPENDENT_LAUNCH,
        "ptx/mbarrier.cuh": MBARRIER,
        "ptx/shared_memory.cuh": SHARED_MEMORY,
        "ptx/warpgroup.cuh": WARPGROUP,
    }


# One program has all launches, since compiling takes longer than running.
ALL_LAUNCHES = r"""
extern "C" __global__ void on_host(PARAMETERS, unsigned number) {
  if (number == 0) gemm_survey(alpha, A, B, beta, C, workspace);
  else gemm(alpha, A, B, beta, C, workspace);
}
"""


def packed_on_host(kernel: Kernel, problem: Problem, configuration: Configuration, folder: Path) -> LaunchesOnHost:
    """One configuration of gemm, and a workspace of zeros."""
    folder.mkdir(exist_ok=True)
    copied = beside(headers(), kernel, folder)
    with (copied / kernel.variant(configuration.variant).source).open("a", encoding="utf-8") as source:
        source.write(ALL_LAUNCHES)
    return LaunchesOnHost(kernel, problem, configuration, copied, 0)
