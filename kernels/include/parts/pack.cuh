// Second launch of a product of packed parts: each number, scaled by its line, as two FP16 parts or, where these would not
// be exact enough, as three of BF16. A warp packs 8 lines and PACK_STEPS steps of k.
#pragma once
#include "parts/workspace.cuh"

constexpr unsigned PACK_STEPS = 4, PACK_WARPS = PACK_THREADS / 32;

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The nearest FP16 or (BF16) BF16 number, its bits; and back.
template <bool BF16>
__device__ __forceinline__ unsigned short narrowed(float x) {
  unsigned short bits;
  if constexpr (BF16) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
template <bool BF16>
__device__ __forceinline__ float widened(unsigned short bits) {
  if constexpr (BF16) return __uint_as_float(static_cast<unsigned>(bits) << 16);
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// The parts of a number, each what those before leave. Of an infinity or a NaN the first is the same and others are
// zero. With `must_stay` the first is not zero, so that its product with infinity is right.
template <unsigned PARTS>
__device__ __forceinline__ void split(float x, bool must_stay, unsigned short (&part)[PARTS]) {
  constexpr bool BF16 = PARTS == WIDE_PARTS;
  part[0] = narrowed<BF16>(x);
  float left = fabsf(x) <= 0x1.fffffep127f ? x - widened<BF16>(part[0]) : 0.0f;
#pragma unroll
  for (unsigned p = 1; p < PARTS; ++p) {
    part[p] = narrowed<BF16>(left);
    left -= widened<BF16>(part[p]);
  }
  if (must_stay && (part[0] & 0x7fff) == 0) part[0] |= 1;
}

template <class Operand>
constexpr unsigned PACK_ITEMS = tw::ceil_div(Operand::LINES, GROUP) * tw::ceil_div(STEPS, PACK_STEPS);   // each a warp's
template <class Operand>
constexpr unsigned PACK_BLOCKS = tw::ceil_div(PACK_ITEMS<Operand>, PACK_WARPS);

// Eight numbers of a line from the k-th on; zeros beyond its end.
template <class Operand>
__device__ __forceinline__ void load_eight(
    const float* __restrict__ numbers, unsigned line, unsigned k, bool is_inside, float (&x)[8]) {
  if constexpr (Operand::ALONG_K && K % 4 == 0) {
    const float* source = numbers + static_cast<size_t>(line) * K + k;
#pragma unroll
    for (unsigned i = 0; i < 8; i += 4) {
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (is_inside && k + i < K) four = *reinterpret_cast<const float4*>(source + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      const size_t at = Operand::ALONG_K ? static_cast<size_t>(line) * K + (k + i)
                                         : static_cast<size_t>(k + i) * Operand::LINES + line;
      x[i] = is_inside && k + i < K ? numbers[at] : 0.0f;
    }
  }
}

// A lane packs 8 neighbours of a line: 16 bytes of each part.
template <class Operand, unsigned PARTS>
__device__ __forceinline__ void pack_item(
    const float* __restrict__ numbers, unsigned char* workspace, unsigned item, bool is_odd) {
  constexpr unsigned GROUPS = tw::ceil_div(Operand::LINES, GROUP), BATCHES = tw::ceil_div(STEPS, PACK_STEPS);
  if (item >= PACK_ITEMS<Operand>) return;
  const unsigned group = Operand::ALONG_K ? item / BATCHES : item % GROUPS;
  const unsigned step = (Operand::ALONG_K ? item % BATCHES : item / GROUPS) * PACK_STEPS;
  const unsigned lane = threadIdx.x % 32;
  const unsigned row = Operand::ALONG_K ? lane / 4 : lane % 8, chunk = Operand::ALONG_K ? lane % 4 : lane / 8;
  const unsigned line = group * GROUP + row;
  const bool is_inside = Operand::LINES % GROUP == 0 || line < Operand::LINES;
  const int scale = is_inside ? scales<Operand>(workspace)[line] : 0;
  const float first = power_of_two(scale / 2), second = power_of_two(scale - scale / 2);   // one may be beyond 2^127
  unsigned char* target = packed<Operand>(workspace) + (static_cast<size_t>(step) * GROUPS + group) * (PARTS * PART_BYTES) +
                          row * 64 + (chunk ^ row / 2 % 4) * 16;
  float x[PACK_STEPS][8];
#pragma unroll
  for (unsigned i = 0; i < PACK_STEPS; ++i) {
    load_eight<Operand>(numbers, line, (step + i) * STEP_K + chunk * 8, is_inside, x[i]);
  }
#pragma unroll
  for (unsigned i = 0; i < PACK_STEPS; ++i) {
    if (STEPS % PACK_STEPS != 0 && step + i >= STEPS) return;
    unsigned words[PARTS][4];
#pragma unroll
    for (unsigned j = 0; j < 8; j += 2) {
      unsigned short low[PARTS], high[PARTS];
      split<PARTS>(x[i][j] * first * second, is_odd && x[i][j] != 0.0f, low);
      split<PARTS>(x[i][j + 1] * first * second, is_odd && x[i][j + 1] != 0.0f, high);
#pragma unroll
      for (unsigned p = 0; p < PARTS; ++p) words[p][j / 2] = low[p] | static_cast<unsigned>(high[p]) << 16;
    }
#pragma unroll
    for (unsigned p = 0; p < PARTS; ++p) {
      *reinterpret_cast<uint4*>(target + static_cast<size_t>(i) * GROUPS * (PARTS * PART_BYTES) + p * PART_BYTES) =
          make_uint4(words[p][0], words[p][1], words[p][2], words[p][3]);
    }
  }
}

template <class Operand>
__device__ __forceinline__ void pack_operand(const float* __restrict__ numbers, unsigned char* workspace, unsigned block) {
  const Summary known = *summary(workspace);
  const unsigned item = block * PACK_WARPS + threadIdx.x / 32;
  if (is_wide(known)) pack_item<Operand, WIDE_PARTS>(numbers, workspace, item, known.is_odd);
  else pack_item<Operand, FINE_PARTS>(numbers, workspace, item, known.is_odd);
}

// All of the launch: PACK_BLOCKS of either operand, of PACK_THREADS each. The last of what was surveyed comes first: it
// is in the L2 cache still.
__device__ __forceinline__ void pack(
    const float* __restrict__ A, const float* __restrict__ B, unsigned char* workspace) {
  const unsigned block = PACK_BLOCKS<OperandA> + PACK_BLOCKS<OperandB> - 1 - blockIdx.x;
  if (block < PACK_BLOCKS<OperandA>) pack_operand<OperandA>(A, workspace, block);
  else pack_operand<OperandB>(B, workspace, block - PACK_BLOCKS<OperandA>);
}
