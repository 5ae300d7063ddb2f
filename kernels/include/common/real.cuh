// REAL, the element type that the problem decides; Sum, what its elements are added up in; Out, what results are stored
// as; and Pack: several neighbours that move in one instruction.
#pragma once

#ifndef REAL
#define REAL float
#define REAL_BYTES 4
#endif

#if REAL_BYTES == 2
#include "common/half.cuh"
#undef REAL   // our own types: every operation on them is one on float, while NVIDIA's round each to 16 bits
#ifdef REAL_IS_BFLOAT16
#define REAL tw::bfloat16
#else
#define REAL tw::float16
#endif
typedef float Sum;
#else
typedef REAL Sum;
#endif

// The type in which results are stored: REAL, or float where a half type's option `output` says so.
#ifdef OUTPUT_FLOAT32
typedef float Out;
#else
typedef REAL Out;
#endif

[[maybe_unused]] constexpr unsigned QUAD = 16 / REAL_BYTES;   // elements of one 16-byte access

// float2, float4 and double2 under one name that can be indexed. Sixteen bytes are the widest load of a thread, so four
// doubles are two of them and need no more than their alignment.
template <unsigned WIDTH>
struct alignas(WIDTH * REAL_BYTES < 16 ? WIDTH * REAL_BYTES : 16) Pack {
  REAL lane[WIDTH];
};

// WIDTH neighbours from memory; `source` must be aligned as Pack<WIDTH> is.
template <unsigned WIDTH>
__device__ __forceinline__ Pack<WIDTH> load_pack(const REAL* source) {
  return *reinterpret_cast<const Pack<WIDTH>*>(source);
}

// The same to memory.
template <unsigned WIDTH>
__device__ __forceinline__ void store_pack(REAL* target, const Pack<WIDTH>& pack) {
  *reinterpret_cast<Pack<WIDTH>*>(target) = pack;
}
