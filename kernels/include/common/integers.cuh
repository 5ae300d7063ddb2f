// Arithmetic on unsigned integers that also works at compile time: tiles, grids and indices are made of it. Signed and wider
// arguments do not compile: converted in silence, -3 would be 4,294,967,293. For signed numbers there is CUDA's own min.
#pragma once

namespace tw {

template <class A, class B>
__device__ constexpr void check_types() {
  static_assert(A(-1) > A(0) && B(-1) > B(0) && sizeof(A) == sizeof(unsigned) && sizeof(B) == sizeof(unsigned),
                "tw::min, max, gcd and ceil_div take unsigned numbers of 32 bits: write 8u for 8");
}

template <class A, class B>
__device__ constexpr unsigned min(A a, B b) {
  check_types<A, B>();
  return a < b ? a : b;
}

template <class A, class B>
__device__ constexpr unsigned max(A a, B b) {
  check_types<A, B>();
  return a > b ? a : b;
}

template <class A, class B>
__device__ constexpr unsigned gcd(A a, B b) {
  check_types<A, B>();
  return b == 0 ? a : gcd(b, a % b);
}

// How many tiles of `tile` cover `extent`.
template <class Extent, class Tile>
__device__ constexpr unsigned ceil_div(Extent extent, Tile tile) {
  check_types<Extent, Tile>();
  return (extent + tile - 1) / tile;
}

}  // namespace tw
