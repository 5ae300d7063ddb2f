// Tiles that reach beyond the matrix are moved back to end with it. For lines that do not exist the copy engine writes zeros, at
// some 11 cycles a line of 128 bytes, where it takes 2 for one that does (H200, 2026-11-30). What two tiles then share, both
// compute alike and store.
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"

// Whether they are: C may not be added to, and chunks of 16 bytes across k must begin where they did.
#if defined(BETA_ZERO) && !BETA_ZERO
#define MOVES_TILES false
#else
#define MOVES_TILES (!TRANS_A || SHAPE_M % 8 == 0)
#endif

// The first line of the tile of LINES that was to begin with `first`, of `length` in all.
template <unsigned LINES>
__device__ __forceinline__ unsigned moved_inside(unsigned first, unsigned length) {
  return tw::min(first, length > LINES ? length - LINES : 0u);
}
