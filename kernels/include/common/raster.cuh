// The order in which blocks take the tiles of a product.
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"

// The first row and column of tile number `tile`, HEIGHT x WIDTH. Numbers go down GROUP row tiles before they step to
// the next column tile, so that blocks at work together share columns of B in the L2 cache. (By reference: a struct
// returned changes what the compiler makes of the kernels for Hopper.)
template <unsigned HEIGHT, unsigned WIDTH, unsigned GROUP>
__device__ __forceinline__ void grouped_raster(unsigned tile, unsigned& m, unsigned& n) {
  constexpr unsigned TILES_N = tw::ceil_div(N, WIDTH);
  const unsigned tiles_m = tw::ceil_div(M, HEIGHT);
  const unsigned group = tile / (GROUP * TILES_N), inside = tile % (GROUP * TILES_N);
  const unsigned group_rows = tw::min(GROUP, tiles_m - group * GROUP);
  m = (group * GROUP + inside % group_rows) * HEIGHT;
  n = inside / group_rows * WIDTH;
}
