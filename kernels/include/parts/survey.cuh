// First launch of a product of packed parts: what the numbers of each line are like. A line that is contiguous is read
// by a block; others by blocks of STRIP lines and CHUNK_K k, of which the last to arrive adds up what all have found.
// Lines that are short enough are packed at once (parts/short_lines.cuh).
#pragma once
#include "parts/chunk.cuh"
#include "parts/line.cuh"
#include "parts/short_lines.cuh"
#include "ptx/dependent_launch.cuh"

constexpr unsigned SURVEY_WARPS = SURVEY_THREADS / 32;

template <class Operand>
__device__ __forceinline__ void survey_line(
    const float* __restrict__ numbers, const Memory& memory, unsigned block, uint4* shared) {
  const unsigned matrix = block / Operand::lines(), line = block % Operand::lines();
  const float* x = matrix_at<Operand>(numbers, matrix) + static_cast<size_t>(line) * Operand::LD;
  Survey found;
  if constexpr (K % 4 == 0 && Operand::LD % 4 == 0 && (Operand::MATRICES == 1 || Operand::STRIDE % 4 == 0)) {
#pragma unroll 4
    for (unsigned k = threadIdx.x * 4; k < K; k += SURVEY_THREADS * 4) {
      const float4 four = *reinterpret_cast<const float4*>(x + k);
      found.add(four.x);
      found.add(four.y);
      found.add(four.z);
      found.add(four.w);
    }
  } else {
#pragma unroll 8
    for (unsigned k = threadIdx.x; k < K; k += SURVEY_THREADS) found.add(x[k]);
  }
  found.close();
#pragma unroll
  for (unsigned distance = 16; distance > 0; distance /= 2) found.add_from_lane(distance);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = found.packed();
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (unsigned warp = 1; warp < SURVEY_WARPS; ++warp) found.add(Survey::unpacked(shared[warp]));
    conclude<Operand>(memory, matrix, line, found);
  }
}

template <class Operand>
__device__ __forceinline__ void survey_strip(
    const float* __restrict__ numbers, const Memory& memory, unsigned block, uint4* shared) {
  constexpr unsigned LINES = Operand::KNOWN_LINES, MATRIX_STRIPS = tw::ceil_div(LINES, STRIP);   // never of rows at launch
  constexpr bool QUADS = LINES % 4 == 0 && Operand::LD % 4 == 0 && (Operand::MATRICES == 1 || Operand::STRIDE % 4 == 0);
  constexpr unsigned WIDTH = QUADS ? 4 : 1;
  const unsigned counted = block % strips<Operand>(), chunk = block / strips<Operand>();
  const unsigned matrix = counted / MATRIX_STRIPS, strip = counted % MATRIX_STRIPS;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* first = matrix_at<Operand>(numbers, matrix) + strip * STRIP;
  const unsigned end = chunk + 1 == CHUNKS ? K : (chunk + 1) * CHUNK_K;
  Survey found[4];   // of lines WIDTH apart, or one beside the other
#pragma unroll 4
  for (unsigned k = chunk * CHUNK_K + warp; k < end; k += SURVEY_WARPS) {
    const float* row = first + static_cast<size_t>(k) * Operand::LD;
    if constexpr (WIDTH == 4) {
      if (LINES % STRIP == 0 || strip * STRIP + lane * 4 < LINES) {
        const float4 four = *reinterpret_cast<const float4*>(row + lane * 4);
        found[0].add(four.x);
        found[1].add(four.y);
        found[2].add(four.z);
        found[3].add(four.w);
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        if (strip * STRIP + lane + i * 32 < LINES) found[i].add(row[lane + i * 32]);
      }
    }
  }
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    found[i].close();
    shared[(WIDTH == 4 ? lane * 4 + i : lane + i * 32) + warp * STRIP] = found[i].packed();
  }
  __syncthreads();

  const unsigned line = strip * STRIP + threadIdx.x;
  const bool is_mine = threadIdx.x < STRIP && line < LINES;
  constexpr size_t ALL_LINES = static_cast<size_t>(LINES) * Operand::MATRICES;
  uint4* parts = memory.partials<Operand>() + static_cast<size_t>(matrix) * LINES + line;
  if (is_mine) {
    Survey all;
#pragma unroll
    for (unsigned i = 0; i < SURVEY_WARPS; ++i) all.add(Survey::unpacked(shared[i * STRIP + threadIdx.x]));
    parts[chunk * ALL_LINES] = all.packed();
  }
  __shared__ unsigned is_last;
  __syncthreads();
  if (threadIdx.x == 0) {   // CUDA C++ Programming Guide, "Memory Fence Functions"
    __threadfence();
    is_last = atomicInc(memory.counters<Operand>() + counted, CHUNKS - 1) == CHUNKS - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last && is_mine) {
    Survey all;
#pragma unroll 8
    for (unsigned i = 0; i < CHUNKS; ++i) all.add(Survey::unpacked(__ldcg(parts + i * ALL_LINES)));
    conclude<Operand>(memory, matrix, line, all);
  }
}

template <class Operand>
__device__ __forceinline__ constexpr unsigned operand_blocks() {
  return ShortLines<Operand>::FITS ? ShortLines<Operand>::all_blocks()
         : Operand::ALONG_K        ? Operand::lines() * Operand::MATRICES
                                   : strips<Operand>() * CHUNKS;
}
template <class Operand>
__device__ __forceinline__ constexpr unsigned survey_blocks() {
  return tw::ceil_div(operand_blocks<Operand>(), SURVEY_CLUSTER) * SURVEY_CLUSTER;
}

template <class Operand>
__device__ __forceinline__ void survey_operand(
    const float* __restrict__ numbers, const Memory& memory, unsigned block, uint4* shared) {
  if constexpr (ShortLines<Operand>::FITS) ShortLines<Operand>::pack(numbers, memory, block, shared);
  else if constexpr (!Operand::ALONG_K) {
    if (block < operand_blocks<Operand>()) survey_strip<Operand>(numbers, memory, block, shared);
  } else if (block < operand_blocks<Operand>()) {
    survey_line<Operand>(numbers, memory, block, shared);
  }
}

template <class Operand>
constexpr unsigned SURVEY_SHARED = !ShortLines<Operand>::FITS && !Operand::ALONG_K ? SURVEY_WARPS * STRIP : SHORT_SHARED;

// Surveys B alone, once before all launches, for a kernel that finds it packed.
__device__ __forceinline__ void survey_kept(const float* __restrict__ B, const Memory& memory) {
  __shared__ uint4 shared[SURVEY_SHARED<OperandB>];
  survey_operand<OperandB>(B, memory, blockIdx.x, shared);
}

// All of the launch: survey_blocks() of either operand, of SURVEY_THREADS each. With PACKED_B, A alone.
__device__ __forceinline__ void survey(const float* __restrict__ A, const float* __restrict__ B, const Memory& memory) {
  __shared__ uint4 shared[SURVEY_SHARED<OperandA> > SURVEY_SHARED<OperandB> ? SURVEY_SHARED<OperandA> : SURVEY_SHARED<OperandB>];
  launch_dependents();
  if (PACKED_B || blockIdx.x < survey_blocks<OperandA>()) survey_operand<OperandA>(A, memory, blockIdx.x, shared);
  else survey_operand<OperandB>(B, memory, blockIdx.x - survey_blocks<OperandA>(), shared);
}
