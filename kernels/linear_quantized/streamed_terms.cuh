// X in shared memory, for the variant `streamed`.
#pragma once
#include "streamed_parameters.cuh"

// X's steps from `first` on, `count` of them, on their way into shared memory: of a step, of a quad, of a row, the lanes'
// terms, in the order that pairs of weights have. Rows behind the last are the last again: their sums go nowhere. Blocks
// begin at different places, since one part of the L2 cache has what they would all ask for at once.
struct Terms {
  static constexpr unsigned LINE_PIECES = tw::ceil_div(STEPS, SPLIT) * 16, PIECES = X_ROWS * LINE_PIECES;   // of 16 bytes
  static constexpr unsigned TOGETHER = tw::min(tw::ceil_div(PIECES, THREADS), MOST_HELD);
  const Half* X;
  unsigned first, count;
  uint4 held[TOGETHER];

  // The thread's i-th piece from `at` on, where it has one.
  template <class Visit>
  __device__ __forceinline__ void each(unsigned at, const Visit& visit) {
    const unsigned begin = blockIdx.x % 16 * (PIECES / 16);
#pragma unroll
    for (unsigned i = 0; i < TOGETHER; ++i) {
      const unsigned ahead = at + i * THREADS + begin, piece = ahead < PIECES ? ahead : ahead - PIECES;
      const bool is_there = at + i * THREADS < PIECES && (STEPS % SPLIT == 0 || piece % LINE_PIECES < count * 16);
      if (is_there) visit(held[i], piece / LINE_PIECES, piece % LINE_PIECES);
    }
  }
  __device__ __forceinline__ void load(unsigned at) {
    each(at, [=](uint4& x, unsigned row, unsigned piece) {
      const unsigned m = tw::min(blockIdx.y * M_ROWS + row, M - 1);
      x = __ldg(reinterpret_cast<const uint4*>(X + static_cast<size_t>(m) * K + first * STEP) + piece);
    });
  }
  __device__ __forceinline__ void store(uint4* shared, unsigned at) {
    each(at, [=](const uint4& x, unsigned row, unsigned piece) {
      const unsigned step = piece / 16, t = BITS == 8 ? piece / 2 % 4 : piece / 4 % 4;
      const unsigned quad = BITS == 8 ? piece / 8 % 2 * 2 + piece % 2 : piece % 4;
      uint4& place = shared[(step * QUADS + quad) * QUAD_PITCH + row * 4 + t];
#if BITS == 8
      place = x;
#else   // terms 0 and 4, 1 and 5 and so forth
      place = make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                         __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
#endif
    });
  }
};
