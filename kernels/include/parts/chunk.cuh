// Eight neighbours along k of a line: what a thread loads, looks at and packs at a time.
#pragma once
#include "parts/split.cuh"
#include "parts/workspace.cuh"

constexpr unsigned CHUNK = 8, STEP_CHUNKS = STEP_K / CHUNK;

// Where the matrix that a line is of begins.
template <class Operand>
__device__ __forceinline__ const float* matrix_at(const float* __restrict__ numbers, unsigned matrix) {
  return Operand::MATRICES == 1 ? numbers : numbers + matrix * Operand::STRIDE;
}

// Loads a line's numbers from the k-th on; zeros beyond its end, and for a line outside of the matrix.
template <class Operand>
__device__ __forceinline__ void load_chunk(
    const float* __restrict__ matrix, unsigned line, unsigned k, bool is_inside, float (&x)[CHUNK]) {
  constexpr bool QUADS = K % 4 == 0 && Operand::LD % 4 == 0 && (Operand::MATRICES == 1 || Operand::STRIDE % 4 == 0);
  if constexpr (Operand::ALONG_K && QUADS) {
    const float* source = matrix + static_cast<size_t>(line) * Operand::LD + k;
#pragma unroll
    for (unsigned i = 0; i < CHUNK; i += 4) {
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (is_inside && k + i < K) four = __ldg(reinterpret_cast<const float4*>(source + i));
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) {
      const size_t at = Operand::ALONG_K ? static_cast<size_t>(line) * Operand::LD + (k + i)
                                         : static_cast<size_t>(k + i) * Operand::LD + line;
      x[i] = is_inside && k + i < K ? __ldg(matrix + at) : 0.0f;
    }
  }
}

// Where the first part of a chunk goes: the `number`-th of its line, which is the `row`-th of a group.
template <class Operand, unsigned PARTS>
__device__ __forceinline__ size_t chunk_at(unsigned matrix, unsigned group, unsigned row, unsigned number) {
  const size_t step = static_cast<size_t>(number / STEP_CHUNKS) * all_groups<Operand>();
  return (step + matrix * groups_of<Operand>() + group) * (PARTS * PART_BYTES) + row * 64
      + (number % STEP_CHUNKS ^ row / 2 % 4) * 16;
}

// Writes the parts of a chunk, 16 bytes each.
template <unsigned PARTS>
__device__ __forceinline__ void pack_chunk(unsigned char* target, const Scale& scale, const float (&x)[CHUNK]) {
  unsigned words[PARTS][4];
#pragma unroll
  for (unsigned j = 0; j < CHUNK; j += 2) {
    unsigned part[PARTS];
    split<PARTS>({x[j], x[j + 1]}, {scale.of(x[j]), scale.of(x[j + 1])}, part);
#pragma unroll
    for (unsigned p = 0; p < PARTS; ++p) words[p][j / 2] = part[p];
  }
#pragma unroll
  for (unsigned p = 0; p < PARTS; ++p) {
    *reinterpret_cast<uint4*>(target + p * PART_BYTES) = make_uint4(words[p][0], words[p][1], words[p][2], words[p][3]);
  }
}

// The same in FP16 of numbers that are finite and, times `factor`, zero or at least 2^-24.
__device__ __forceinline__ void pack_usual(unsigned char* target, const float (&x)[CHUNK], float factor) {
  uint4 high, low;
  split_usual(x, factor, high, low);
  *reinterpret_cast<uint4*>(target) = high;
  *reinterpret_cast<uint4*>(target + PART_BYTES) = low;
}
