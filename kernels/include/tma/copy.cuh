// How an operand comes to the ring whose rows begin in the middle of sectors of 32 bytes (tma/parameters.cuh): by a warpgroup, in
// copies of 16 bytes that go by the L1 cache, which has whole sectors.
#pragma once
#include "ptx/cp_async_cached.cuh"
#include "tma/ring.cuh"

// How an operand's tile comes to shared memory as boxes do (BoxedOperand). A thread has one chunk of 16 bytes of every 16th line.
// SIDE is 0 of A where the launch says its rows.
template <unsigned TILE, bool K_MAJOR, unsigned SIDE, unsigned LD>
struct CopiedOperand {
  static constexpr unsigned COPIES = TILE * LINE_BYTES / 16 / LOADERS, LINES = LOADERS / 8;   // of a thread; at a time
  static constexpr unsigned NUMBERS = 8;                                                       // of a chunk
  static constexpr unsigned LENGTH = K_MAJOR ? K : SIDE;   // of rows in memory, of a matrix
  unsigned line, column, target;

  __device__ __forceinline__ CopiedOperand() {
    const unsigned thread = threadIdx.x % LOADERS, chunk = thread % 8;
    line = thread / 8;
    column = chunk * NUMBERS;
    target = line * LINE_BYTES + (chunk ^ line % 8) * 16;
  }

  // Starts the copies; what lies outside is zero. Boxes across k have STEP_K lines each.
  __device__ __forceinline__ void load(const Half* matrix, unsigned stage, unsigned first, unsigned k) const {
    const unsigned row = (K_MAJOR ? first : k) + line, from = (K_MAJOR ? k : first) + column;
    const Half* const source = matrix + static_cast<size_t>(row) * LD + from;
    const unsigned rows = K_MAJOR ? (SIDE == 0 ? M : SIDE) : K;
#pragma unroll
    for (unsigned i = 0; i < COPIES; ++i) {
      const unsigned below = K_MAJOR ? i * LINES : i * LINES % STEP_K, beside = K_MAJOR ? 0 : i * LINES / STEP_K * STEP_K;
      const unsigned bytes = row + below < rows && from + beside < LENGTH ? 16 : 0;
      cp_async_cached(stage + target + i * (LINES * LINE_BYTES), source + static_cast<size_t>(below) * LD + beside, bytes);
    }
  }
};
