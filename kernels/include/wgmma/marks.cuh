// Which tiles of a block's round need another pass (common/second_pass.cuh), in shared memory.
#pragma once
#include "ptx/shared_memory.cuh"
#include "wgmma/scheduler.cuh"

struct Marks {
  enum Fact : unsigned { REGISTER_IS_TINY = 1, SHARED_IS_TINY = 2, NEEDS_SECOND = 4, NEEDS_THIRD = 8 };
  unsigned facts;            // of all tiles so far
  unsigned largest_shared;   // bits of SecondPass::largest of the operand in shared memory
  unsigned tiles[2][tw::ceil_div(ROUND, 16u)];   // for the second pass and the third, two bits each: of the warpgroups

  __device__ __forceinline__ void clear() {
    facts = largest_shared = 0;
    for (auto& pass : tiles) {
      for (unsigned& sixteen : pass) sixteen = 0;
    }
  }

  __device__ __forceinline__ unsigned now() const { return *static_cast<const volatile unsigned*>(&facts); }
  __device__ __forceinline__ void note(unsigned fact) {
    if (!(now() & fact)) atomicOr(&facts, fact);
  }
  __device__ __forceinline__ void mark(unsigned pass, unsigned number, unsigned warpgroup) {
    note(pass == 1 ? NEEDS_SECOND : NEEDS_THIRD);
    atomicOr(&tiles[pass - 1][number / 16], 1u << (number % 16 * 2 + warpgroup));
  }
  __device__ __forceinline__ unsigned of_tile(unsigned pass, unsigned number) const {
    return tiles[pass - 1][number / 16] >> number % 16 * 2 & 3;
  }
};
