// Y = act(conv(X, W) + b); problem.cuh has the layouts.
//
// The convolution as a product of patches and filters, neither of which is ever stored: gemm's `wpt`, whose tiles come
// from the images directly (conv/patches.cuh). fma/wpt.cuh has the machine, its mapping and its parameters; a row is
// an output pixel, a column a filter. Bias and activation are applied to a finished sum in its register.
//   block ((TILE_M / WPT_M) * (TILE_N / WPT_N)): one axis
//   grid  (row tiles * column tiles): one axis
// Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning" (2014), for products of patches that are not stored.
#include "problem.cuh"

#include "epilogue.cuh"
#include "fma/wpt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER) {
  const Origin origin = tile_origin(blockIdx.x);
  const Patch patch(threadIdx.x);
  REAL sum[WPT_M][WPT_N] = {};
  add_products(sum, X, W, origin, patch);
  constexpr unsigned WIDE = tw::gcd(N, tw::min(ShareN::RUN, unsigned{VECTOR_WIDTH}));
  const Epilogue epilogue{b, Y};
#pragma unroll
  for (unsigned i = 0; i < WPT_M; ++i) {
    const unsigned row = origin.m + ShareM::at(patch.m, i);
    if (M % TILE_M != 0 && row >= M) continue;
#pragma unroll
    for (unsigned j = 0; j < WPT_N; j += WIDE) {
      const unsigned column = origin.n + ShareN::at(patch.n, j);
      if (N % TILE_N != 0 && column >= N) continue;
      Pack<WIDE> out;
#pragma unroll
      for (unsigned w = 0; w < WIDE; ++w) out.lane[w] = sum[i][j + w];
      epilogue.write<WIDE>(row, column, out);
    }
  }
}
