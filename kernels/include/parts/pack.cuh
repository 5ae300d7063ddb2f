// Second launch of a product of packed parts: each number, scaled by its line, as two FP16 parts or, where these would not
// be exact enough, as three of BF16. What the first launch packed in FP16 is left as it is where that suffices. A warp
// packs 8 lines and PACK_STEPS steps of k.
#pragma once
#include "parts/chunk.cuh"
#include "parts/short_lines.cuh"
#include "ptx/dependent_launch.cuh"

constexpr unsigned PACK_STEPS = 4, PACK_WARPS = PACK_THREADS / 32;

template <class Operand>
constexpr unsigned PACK_BLOCKS =   // of PACK_WARPS groups and PACK_STEPS steps
    tw::ceil_div(ALL_GROUPS<Operand> * tw::ceil_div(STEPS, PACK_STEPS), PACK_WARPS);

// A lane packs 8 neighbours of a line: 16 bytes of each part.
template <class Operand, unsigned PARTS>
__device__ __forceinline__ void pack_item(const float* __restrict__ numbers, const Memory& memory, unsigned item) {
  constexpr unsigned ALL = ALL_GROUPS<Operand>, BATCHES = tw::ceil_div(STEPS, PACK_STEPS);
  if (item >= ALL * BATCHES) return;
  const unsigned counted = Operand::ALONG_K ? item / BATCHES : item % ALL;
  const unsigned step = (Operand::ALONG_K ? item % BATCHES : item / ALL) * PACK_STEPS;
  const unsigned matrix = counted / GROUPS<Operand>, group = counted % GROUPS<Operand>;
  const unsigned lane = threadIdx.x % 32;
  const unsigned row = Operand::ALONG_K ? lane / 4 : lane % 8, chunk = Operand::ALONG_K ? lane % 4 : lane / 8;
  const unsigned line = group * GROUP + row, first = step * STEP_CHUNKS + chunk;
  const bool is_inside = Operand::LINES % GROUP == 0 || line < Operand::LINES;
  const float* matrix_start = matrix_at<Operand>(numbers, matrix);
  const Scale scale(is_inside ? memory.scales<Operand>()[static_cast<size_t>(matrix) * Operand::LINES + line] : 0);
  unsigned char* target = memory.packed<Operand, PARTS>();
  float x[PACK_STEPS][CHUNK];
#pragma unroll
  for (unsigned i = 0; i < PACK_STEPS; ++i) {
    load_chunk<Operand>(matrix_start, line, (first + i * STEP_CHUNKS) * CHUNK, is_inside, x[i]);
  }
#pragma unroll
  for (unsigned i = 0; i < PACK_STEPS; ++i) {
    if (STEPS % PACK_STEPS != 0 && step + i >= STEPS) return;
    pack_chunk<PARTS>(
        target + chunk_at<Operand, PARTS>(matrix, group, row, first + i * STEP_CHUNKS), scale, x[i]);
  }
}

template <class Operand>
__device__ __forceinline__ void pack_operand(
    const float* __restrict__ numbers, const Memory& memory, unsigned block, bool wide) {
  const unsigned item = block * PACK_WARPS + threadIdx.x / 32;
  if (wide) pack_item<Operand, WIDE_PARTS>(numbers, memory, item);
  else if constexpr (!ShortLines<Operand>::FITS) pack_item<Operand, FINE_PARTS>(numbers, memory, item);
}

// All of the launch, for PACK_BLOCKS of either operand: by turns, the last of what was surveyed first, since it is in the
// L2 cache still. A B that was packed ahead has its FP16 parts already.
__device__ __forceinline__ void pack(const float* __restrict__ A, const float* __restrict__ B, const Memory& memory) {
  launch_dependents();
  wait_for_launch_before();
  const bool wide = is_wide(*memory.summary<OperandA>(), *memory.summary<OperandB>());
  constexpr bool A_IS_PACKED = ShortLines<OperandA>::FITS, B_IS_PACKED = PACKED_B || ShortLines<OperandB>::FITS;
  if (A_IS_PACKED && B_IS_PACKED && !wide) return;
  for (unsigned turn = blockIdx.x; turn < PACK_BLOCKS<OperandA> + PACK_BLOCKS<OperandB>; turn += gridDim.x) {
    const unsigned block = PACK_BLOCKS<OperandA> + PACK_BLOCKS<OperandB> - 1 - turn;
    if (block < PACK_BLOCKS<OperandA>) pack_operand<OperandA>(A, memory, block, wide);
    else if (wide || !PACKED_B) pack_operand<OperandB>(B, memory, block - PACK_BLOCKS<OperandA>, wide);
  }
}

// B by itself in FP16, after its survey, where that has not packed it.
__device__ __forceinline__ void pack_kept(const float* __restrict__ B, const Memory& memory) {
  pack_operand<OperandB>(B, memory, blockIdx.x, false);
}
