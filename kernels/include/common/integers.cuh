// Arithmetic on unsigned integers that also works at compile time: tiles, grids and indices are made of it.
#pragma once

namespace tw {

__device__ constexpr unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

__device__ constexpr unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

__device__ constexpr unsigned gcd(unsigned a, unsigned b) { return b == 0 ? a : gcd(b, a % b); }

// How many tiles of `tile` cover `extent`.
__device__ constexpr unsigned ceil_div(unsigned extent, unsigned tile) { return (extent + tile - 1) / tile; }

}  // namespace tw
