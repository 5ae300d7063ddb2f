// Loads and stores of Packs in global memory, with a hint for the caches.
#pragma once
#include "common/real.cuh"

// For data that no thread will ask for again, so that it is the first to leave the caches (ld.global.cs). The bits
// travel as floats whatever REAL is. A host compiler has no such hint and needs none.
template <unsigned WIDTH>
__device__ __forceinline__ Pack<WIDTH> load_streaming(const REAL* source) {
#ifdef __CUDA_ARCH__
  union {
    float4 quad[(WIDTH * REAL_BYTES + 15) / 16];
    float2 pair;
    float single;
    unsigned short half;
    Pack<WIDTH> pack;
  } bits;
  if constexpr (WIDTH * REAL_BYTES == 2) {
    bits.half = __ldcs(reinterpret_cast<const unsigned short*>(source));
  } else if constexpr (WIDTH * REAL_BYTES == 4) {
    bits.single = __ldcs(reinterpret_cast<const float*>(source));
  } else if constexpr (WIDTH * REAL_BYTES == 8) {
    bits.pair = __ldcs(reinterpret_cast<const float2*>(source));
  } else {
#pragma unroll
    for (unsigned i = 0; i < WIDTH * REAL_BYTES / 16; ++i) {
      bits.quad[i] = __ldcs(reinterpret_cast<const float4*>(source) + i);
    }
  }
  return bits.pack;
#else
  return load_pack<WIDTH>(source);
#endif
}

// Sixteen bytes that another block has written, past the L1 cache (ld.global.cg).
__device__ __forceinline__ Pack<QUAD> load_from_l2(const REAL* source) {
  union {
    float4 bits;
    Pack<QUAD> pack;
  } loaded;
  loaded.bits = __ldcg(reinterpret_cast<const float4*>(source));
  return loaded.pack;
}

#ifndef STREAMS_OUTPUT
#define STREAMS_OUTPUT 0   // 1: what store_global stores is the first to leave the L2 cache
#endif
// WIDTH neighbours, sixteen bytes as one instruction from the start: to merge four stores is a tenth of the optimizer's
// work on a kernel with many of them. `target` must be aligned as Pack<WIDTH> is.
template <unsigned WIDTH>
__device__ __forceinline__ void store_global(REAL* target, const Pack<WIDTH>& pack) {
  if constexpr (WIDTH == 4 && REAL_BYTES == 4) {
    const float4 quad = make_float4(pack.lane[0], pack.lane[1], pack.lane[2], pack.lane[3]);
    if constexpr (STREAMS_OUTPUT) __stcs(reinterpret_cast<float4*>(target), quad);
    else __stwb(reinterpret_cast<float4*>(target), quad);
  } else {
    store_pack<WIDTH>(target, pack);
  }
}
