// Weights on their way from shared memory to the registers of a warpgroup's product, for the variant `streamed_sm90`.
#pragma once
#include "streamed_sm90_parameters.cuh"
#include "whole_numbers.cuh"

#include "ptx/lop3.cuh"

// Two weights that are neighbours along k, 2 t and 2 t + 1 of eight: of 8 bits in one of two words, of 4 bits in byte t of one.
#if BITS == 8
__device__ __forceinline__ unsigned pair_beside(unsigned first, unsigned second, unsigned t) {
  return pair_of_bytes(and_xor(__byte_perm(first, second, t * 0x202 + 0x100), 0x00ff00ffu, 0x00800080u));
}
#else
// In memory, so that the compiler keeps it in a register: else it moves the factors to one ahead of each multiplication.
__constant__ unsigned bias_of_8 = BIAS_OF_8;
__device__ __forceinline__ unsigned pair_inside(unsigned word, unsigned t, float zero) {
  return pair_of_nibbles<false, true>(__byte_perm(word, 0, 0x4040 + t * 0x101), ZEROS ? bias_of(zero) : bias_of_8);
}
#endif

// The row of W that a thread has first, of those of its warp, in any order of the eight; the second is 8 on.
__device__ __forceinline__ unsigned first_row_of(unsigned lane) { return lane / 8 + lane / 4 % 2 * 4; }

// A thread's part of 64 k of both rows: of four products, of 16 k each, the pairs that a product takes from it.
struct Weights {
  unsigned pairs[4][4];

  // From the line of its first row, the `number`-th 64 k of it. X lies along k as in memory, so that a thread takes two of every
  // eight weights: four threads read the same 16 bytes, of which each takes its own.
  __device__ __forceinline__ void read(const unsigned char* line, unsigned number, const float (&zero)[2]) {
    constexpr unsigned CHUNKS = 64 * BITS / 128, TOGETHER = 4 / CHUNKS;   // of 16 bytes; products of one
    const unsigned lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (unsigned i = 0; i < 2 * CHUNKS; ++i) {
      const unsigned chunk = i / 2, row = i % 2, place = (number * CHUNKS + chunk) ^ first_row_of(lane);   // lines are swizzled
      const uint4 words = reinterpret_cast<const uint4*>(line + row * 8 * LINE_BYTES)[place];
#pragma unroll
      for (unsigned j = 0; j < 2 * TOGETHER; ++j) {
        unsigned& pair = pairs[chunk * TOGETHER + j / 2][row + j % 2 * 2];
#if BITS == 8
        pair = j == 0 ? pair_beside(words.x, words.y, t) : pair_beside(words.z, words.w, t);
#else
        pair = pair_inside(word_of(words, j), t, zero[row]);
#endif
      }
    }
  }

  // Names them, so that their registers are not written before the wait above.
  __device__ __forceinline__ void fence() {
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) asm volatile("" : "+r"(pairs[i / 4][i % 4])::"memory");
  }
};
