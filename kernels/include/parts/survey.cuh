// First launch of a product of packed parts: what the numbers of each line are like. A line that is contiguous is read
// by a block; others by blocks of STRIP lines and CHUNK_K k, of which the last to arrive adds up what all have found.
#pragma once
#include "parts/workspace.cuh"

constexpr unsigned SURVEY_WARPS = SURVEY_THREADS / 32;

// Of some finite numbers that are not zero: the bits of the largest, the sum of all their logarithms, how many they are;
// whether there was another, infinite or NaN.
struct Survey {
  unsigned largest = 0, count = 0, is_odd = 0;
  long long logarithms = 0;

  // 2^23 times the logarithm to the base 2 and 127: the bits as an integer, at most 0.0861 * 2^23 too small. Numbers
  // below the normal ones are looked at times 2^24.
  __device__ __forceinline__ static int logarithm(unsigned bits) {
    const int enlarged = __float_as_int(__uint_as_float(bits) * 0x1p24f) - (24 << 23);
    return bits < 0x00800000u ? enlarged : static_cast<int>(bits);
  }
  __device__ __forceinline__ void add(float x) {
    const unsigned magnitude = __float_as_uint(x) & 0x7fffffffu;
    const bool counts = magnitude - 1 < 0x7f7fffffu;
    largest = max(largest, counts ? magnitude : 0);
    logarithms += counts ? logarithm(magnitude) : 0;
    count += counts;
    is_odd = max(is_odd, magnitude);
  }
  // Turns the largest magnitude of all, which is quicker to keep, into whether it is infinite or NaN.
  __device__ __forceinline__ void close() { is_odd = is_odd >= 0x7f800000u; }
  __device__ __forceinline__ void add(const Survey& other) {
    largest = max(largest, other.largest);
    logarithms += other.logarithms;
    count += other.count;
    is_odd |= other.is_odd;
  }
  __device__ __forceinline__ void add_from_lane(unsigned distance) {
    Survey other;
    other.largest = __shfl_xor_sync(0xffffffffu, largest, distance);
    other.count = __shfl_xor_sync(0xffffffffu, count, distance);
    other.is_odd = __shfl_xor_sync(0xffffffffu, is_odd, distance);
    other.logarithms = __shfl_xor_sync(0xffffffffu, logarithms, distance);
    add(other);
  }

  // In 16 bytes, for one that is closed: a line has less than 2^31 numbers.
  __device__ __forceinline__ uint4 packed() const {
    const unsigned long long wide = static_cast<unsigned long long>(logarithms);
    return make_uint4(largest, count | is_odd << 31, static_cast<unsigned>(wide), static_cast<unsigned>(wide >> 32));
  }
  __device__ __forceinline__ static Survey unpacked(const uint4& words) {
    Survey found;
    found.largest = words.x;
    found.count = words.y & 0x7fffffffu;
    found.is_odd = words.y >> 31;
    found.logarithms = static_cast<long long>(static_cast<unsigned long long>(words.w) << 32 | words.z);
    return found;
  }

  // The exponent of two of the largest.
  __device__ __forceinline__ int exponent() const {
    return largest >= 0x00800000u ? static_cast<int>(largest >> 23) - 127 : 31 - __clz(largest) - 149;
  }
  // How many bits the numbers lie below the largest, all together; not too few.
  __device__ __forceinline__ float deficit() const {
    const long long most = static_cast<long long>(logarithm(largest)) * count;
    return static_cast<float>(most - logarithms) * 0x1p-23f + 0.0861f * static_cast<float>(count);
  }
};

// What is found out about a line, by one thread.
template <class Operand>
__device__ __forceinline__ void conclude(unsigned char* workspace, unsigned line, const Survey& found) {
  Summary* known = summary(workspace);
  int scale = 0;
  if (found.count > 0) {
    scale = 14 - found.exponent();
    const float deficit = found.deficit();
    const unsigned zeros = K - found.count;
    // Most lines change nothing, and many atomic operations on one word would take their time.
    if (deficit > __ldcg(&known->deficit[Operand::NUMBER])) {
      atomicMax(reinterpret_cast<int*>(&known->deficit[Operand::NUMBER]), __float_as_int(deficit));
    }
    if (zeros > __ldcg(&known->zeros[Operand::NUMBER])) atomicMax(&known->zeros[Operand::NUMBER], zeros);
    if (scale < -60 || scale > 60) known->is_extreme = 1;
  }
  if (found.is_odd) known->is_odd = 1;
  scales<Operand>(workspace)[line] = scale;
}

template <class Operand>
__device__ __forceinline__ void survey_line(
    const float* __restrict__ numbers, unsigned char* workspace, unsigned line, uint4* shared) {
  const float* x = numbers + static_cast<size_t>(line) * K;
  Survey found;
  if constexpr (K % 4 == 0) {
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
    conclude<Operand>(workspace, line, found);
  }
}

template <class Operand>
__device__ __forceinline__ void survey_strip(
    const float* __restrict__ numbers, unsigned char* workspace, unsigned block, uint4* shared) {
  constexpr unsigned LINES = Operand::LINES, STRIPS = tw::ceil_div(LINES, STRIP), WIDTH = LINES % 4 == 0 ? 4 : 1;
  const unsigned strip = block % STRIPS, chunk = block / STRIPS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned end = chunk + 1 == CHUNKS ? K : (chunk + 1) * CHUNK_K;
  Survey found[4];   // of lines WIDTH apart, or one beside the other
#pragma unroll 4
  for (unsigned k = chunk * CHUNK_K + warp; k < end; k += SURVEY_WARPS) {
    const float* row = numbers + static_cast<size_t>(k) * LINES + strip * STRIP;
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
  uint4* parts = partials<Operand>(workspace) + line;
  if (is_mine) {
    Survey all;
#pragma unroll
    for (unsigned i = 0; i < SURVEY_WARPS; ++i) all.add(Survey::unpacked(shared[i * STRIP + threadIdx.x]));
    parts[static_cast<size_t>(chunk) * LINES] = all.packed();
  }
  __shared__ unsigned is_last;
  __syncthreads();
  if (threadIdx.x == 0) {   // CUDA C++ Programming Guide, "Memory Fence Functions"
    __threadfence();
    is_last = atomicInc(counters<Operand>(workspace) + strip, CHUNKS - 1) == CHUNKS - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last && is_mine) {
    Survey all;
#pragma unroll 8
    for (unsigned i = 0; i < CHUNKS; ++i) all.add(Survey::unpacked(__ldcg(parts + static_cast<size_t>(i) * LINES)));
    conclude<Operand>(workspace, line, all);
  }
}

template <class Operand>
constexpr unsigned SURVEY_BLOCKS = Operand::ALONG_K ? Operand::LINES : tw::ceil_div(Operand::LINES, STRIP) * CHUNKS;

template <class Operand>
__device__ __forceinline__ void survey_operand(
    const float* __restrict__ numbers, unsigned char* workspace, unsigned block, uint4* shared) {
  if constexpr (Operand::ALONG_K) survey_line<Operand>(numbers, workspace, block, shared);
  else survey_strip<Operand>(numbers, workspace, block, shared);
}

// All of the launch: SURVEY_BLOCKS of either operand, of SURVEY_THREADS each.
__device__ __forceinline__ void survey(
    const float* __restrict__ A, const float* __restrict__ B, unsigned char* workspace) {
  constexpr bool STRIPS = !OperandA::ALONG_K || !OperandB::ALONG_K;
  __shared__ uint4 shared[SURVEY_WARPS * (STRIPS ? STRIP : 1)];
  if (blockIdx.x < SURVEY_BLOCKS<OperandA>) survey_operand<OperandA>(A, workspace, blockIdx.x, shared);
  else survey_operand<OperandB>(B, workspace, blockIdx.x - SURVEY_BLOCKS<OperandA>, shared);
}
