// Each number, scaled by its line, as two FP16 parts or, where these would not be exact enough, as three of BF16: what the
// first launch has not packed, or not in the parts that it takes. A warp packs 8 lines and a step of k.
#pragma once
#include "parts/chunk.cuh"
#include "parts/short_lines.cuh"
#include "ptx/cp_async_bulk.cuh"

constexpr unsigned PACK_WARPS = PACK_THREADS / 32;

template <class Operand>
__device__ __forceinline__ constexpr unsigned pack_items() { return all_groups<Operand>() * STEPS; }   // each a warp's

// An operand in variables, so that the code for both is the same: it is there in every configuration, and rarely runs.
template <unsigned PARTS>
struct Unpacked {
  const float* numbers;
  const int* scales;
  unsigned char* target;
  size_t between_matrices, between_lines, between_k;
  unsigned lines, groups, matrices;

  template <class Operand>
  __device__ __forceinline__ static Unpacked of(const float* __restrict__ numbers, const Memory& memory) {
    return {numbers, memory.scales<Operand>(), memory.packed<Operand, PARTS>(), Operand::STRIDE,
            Operand::ALONG_K ? Operand::LD : 1u, Operand::ALONG_K ? 1u : Operand::LD, Operand::lines(),
            groups_of<Operand>(), Operand::MATRICES};
  }

  // A lane packs 8 neighbours of a line: 16 bytes of each part.
  __device__ __forceinline__ void pack_item(unsigned item) const {
    const unsigned all = groups * matrices, step = item / all, counted = item % all;
    const unsigned matrix = counted / groups, lane = threadIdx.x % 32;
    const unsigned row = lane % GROUP, chunk = lane / GROUP, line = counted % groups * GROUP + row;
    const unsigned k = step * STEP_K + chunk * CHUNK;
    const bool is_inside = line < lines;
    const float* from = numbers + matrix * between_matrices + line * between_lines + k * between_k;
    const Scale scale(is_inside ? scales[static_cast<size_t>(matrix) * lines + line] : 0);
    float x[CHUNK];
#pragma unroll
    for (unsigned j = 0; j < CHUNK; ++j) x[j] = is_inside && k + j < K ? __ldg(from + j * between_k) : 0.0f;
    pack_chunk<PARTS>(
        target + static_cast<size_t>(item) * (PARTS * PART_BYTES) + row * 64 + (chunk ^ row / 2 % 4) * 16, scale, x);
  }
};

// B by itself in FP16, after its survey, where that has not packed it.
__device__ __forceinline__ void pack_kept(const float* __restrict__ B, const Memory& memory) {
  const unsigned item = blockIdx.x * PACK_WARPS + threadIdx.x / 32;
  if (ShortLines<OperandB>::FITS || item >= pack_items<OperandB>()) return;
  Unpacked<FINE_PARTS>::of<OperandB>(B, memory).pack_item(item);
}

// What the launch that multiplies does first, all warps of all its blocks; returns once all is packed. Warps draw items, so
// that whoever waits does so for warps that run.
template <unsigned PARTS>
__device__ __forceinline__ void pack_by_turns(
    const float* __restrict__ A, const float* __restrict__ B, const Memory& memory) {
  constexpr unsigned DRAWN = 16;
  const unsigned items = pack_items<OperandA>() + pack_items<OperandB>();
  constexpr bool WIDE = PARTS == WIDE_PARTS, SKIPS_A = !WIDE && ShortLines<OperandA>::FITS;
  constexpr bool SKIPS_B = !WIDE && (PACKED_B || ShortLines<OperandB>::FITS);
  unsigned* const drawn = memory.drawn();
#pragma unroll 1
  while (true) {
    unsigned first = 0;
    if (threadIdx.x % 32 == 0) first = atomicAdd(drawn, DRAWN);
    first = __shfl_sync(0xffffffffu, first, 0);
    if (first >= items) break;
#pragma unroll 1
    for (unsigned item = first; item < tw::min(first + DRAWN, items); ++item) {
      const bool is_a = item < pack_items<OperandA>();
      if (is_a ? SKIPS_A : SKIPS_B) continue;
      Unpacked<PARTS> operand = Unpacked<PARTS>::template of<OperandA>(A, memory);
      if (!is_a) operand = Unpacked<PARTS>::template of<OperandB>(B, memory);
      operand.pack_item(is_a ? item : item - pack_items<OperandA>());
    }
    __threadfence();
    fence_proxy_async_global();
    __syncwarp();
    if (threadIdx.x % 32 == 0) atomicAdd(drawn + 1, DRAWN);
  }
  while (!__any_sync(0xffffffffu, *static_cast<volatile unsigned*>(drawn + 1) >= items)) {}
  __threadfence();
  fence_proxy_async_global();
}

__device__ __forceinline__ void pack_the_rest(
    const float* __restrict__ A, const float* __restrict__ B, const Memory& memory, bool wide) {
  if (wide) pack_by_turns<WIDE_PARTS>(A, B, memory);
  else if constexpr (!ShortLines<OperandA>::FITS || !(PACKED_B || ShortLines<OperandB>::FITS)) {
    pack_by_turns<FINE_PARTS>(A, B, memory);
  }
}
