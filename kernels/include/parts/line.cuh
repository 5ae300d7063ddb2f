// Surveys the numbers of a line.
#pragma once
#include "parts/workspace.cuh"

// A survey of finite numbers that are not zero: the bits of the largest, the sum of all their logarithms, their count;
// and whether another number was infinite or NaN.
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

  // How many bits the numbers lie below the largest, all together; not too few.
  __device__ __forceinline__ float deficit() const {
    const long long most = static_cast<long long>(logarithm(largest)) * count;
    return static_cast<float>(most - logarithms) * 0x1p-23f + 0.0861f * static_cast<float>(count);
  }
};

// The same in a few words, of a line that was looked at in one piece, or of some of its numbers.
struct Finding {
  unsigned largest = 0, count = 0;   // in the highest bit, whether there was an infinity or a NaN
  float logarithms = 0;              // to the base 2, added up; each at most 0.0861 too small

  Finding() = default;
  __device__ __forceinline__ Finding(unsigned bits, unsigned numbers, float sum)
      : largest(bits), count(numbers), logarithms(sum) {}
  __device__ __forceinline__ explicit Finding(const Survey& found) : largest(found.largest) {
    count = found.count | (found.is_odd >= 0x7f800000u ? 1u << 31 : 0);
    logarithms = static_cast<float>(found.logarithms - (127ll << 23) * found.count) * 0x1p-23f;
  }
  __device__ __forceinline__ void add(const uint4& other) {
    largest = max(largest, other.x);
    count = (count & 0x7fffffffu) + (other.y & 0x7fffffffu) | (count | other.y) & 0x80000000u;
    logarithms += __uint_as_float(other.z);
  }
  __device__ __forceinline__ void add_from_lane(unsigned distance) {
    const unsigned sum = __float_as_uint(__shfl_xor_sync(0xffffffffu, logarithms, distance));
    add(make_uint4(__shfl_xor_sync(0xffffffffu, largest, distance), __shfl_xor_sync(0xffffffffu, count, distance), sum, 0));
  }
  __device__ __forceinline__ uint4 packed() const { return make_uint4(largest, count, __float_as_uint(logarithms), 0); }

  // How many bits the numbers lie below the largest, all together; not too few.
  __device__ __forceinline__ float deficit() const {
    const float all = static_cast<float>(count & 0x7fffffffu);
    const float top = static_cast<float>(Survey::logarithm(largest) - (127 << 23)) * 0x1p-23f;
    return all * (top + 0.0861f) - logarithms;
  }
};

// The exponent of two that the numbers of a line are multiplied by, by the bits of the largest; 0 where all are zero.
__device__ __forceinline__ int scale_of(unsigned largest) {
  if (largest == 0) return 0;
  return 14 - (largest >= 0x00800000u ? static_cast<int>(largest >> 23) - 127 : 31 - __clz(largest) - 149);
}

// Notes what was found out about a line of a matrix; by one thread.
template <class Operand>
__device__ __forceinline__ void conclude(
    const Memory& memory, unsigned matrix, unsigned line, int scale, unsigned zeros, float deficit, bool is_odd) {
  Summary* known = memory.summary<Operand>();
  if (zeros < K) {
    // Most lines change nothing, and many atomic operations on one word would take their time.
    if (deficit > __ldcg(&known->deficit)) atomicMax(reinterpret_cast<int*>(&known->deficit), __float_as_int(deficit));
    if (zeros > __ldcg(&known->zeros)) atomicMax(&known->zeros, zeros);
    if (scale < -60 || scale > 60) known->is_extreme = 1;
  }
  if (is_odd) known->is_odd = 1;
  memory.scales<Operand>()[static_cast<size_t>(matrix) * Operand::lines() + line] = scale;
}
template <class Operand>
__device__ __forceinline__ void conclude(const Memory& memory, unsigned matrix, unsigned line, const Survey& found) {
  conclude<Operand>(
      memory, matrix, line, scale_of(found.largest), K - found.count, found.deficit(), found.is_odd);
}
template <class Operand>
__device__ __forceinline__ void conclude(const Memory& memory, unsigned matrix, unsigned line, const Finding& found) {
  conclude<Operand>(memory, matrix, line, scale_of(found.largest), K - (found.count & 0x7fffffffu), found.deficit(),
                    found.count >> 31);
}
