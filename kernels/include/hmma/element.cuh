// What the products of the variant `tensor_half` are of, and what its results are stored as. REAL is the type of its
// sums from here on, so that the headers that add up and share out sums serve it as they serve float32.
#pragma once
#include "common/half.cuh"

#ifdef REAL_IS_FLOAT16
typedef tw::float16 Half;
constexpr bool IS_BFLOAT16 = false;
#else
typedef tw::bfloat16 Half;
constexpr bool IS_BFLOAT16 = true;
#endif
#ifdef OUTPUT_FLOAT32
typedef float Stored;
#else
typedef Half Stored;
#endif
#undef REAL
#undef REAL_BYTES
#define REAL float
#define REAL_BYTES 4
#include "common/real.cuh"
#include "ptx/convert_half.cuh"

// WIDTH neighbours that move in as few instructions as their alignment admits, that of all of them or 16 bytes.
template <class Element, unsigned WIDTH>
struct alignas(WIDTH * sizeof(Element) < 16 ? WIDTH * sizeof(Element) : 16) Line {
  Element lane[WIDTH];
};

template <unsigned WIDTH, class Element>
__device__ __forceinline__ Pack<WIDTH> load_floats(const Element* source) {
  const Line<Element, WIDTH> line = *reinterpret_cast<const Line<Element, WIDTH>*>(source);
  Pack<WIDTH> floats;
#pragma unroll
  for (unsigned i = 0; i < WIDTH; ++i) floats.lane[i] = line.lane[i];
  return floats;
}

template <unsigned WIDTH>
__device__ __forceinline__ void store_floats(float* target, const Pack<WIDTH>& floats) {
  *reinterpret_cast<Pack<WIDTH>*>(target) = floats;
}
template <unsigned WIDTH>
__device__ __forceinline__ void store_floats(Half* target, const Pack<WIDTH>& floats) {
  if constexpr (WIDTH == 1) {
    *target = floats.lane[0];
  } else {
    Line<unsigned, WIDTH / 2> words;
#pragma unroll
    for (unsigned i = 0; i < WIDTH / 2; ++i) {
      words.lane[i] = cvt_rn_x2<IS_BFLOAT16>(floats.lane[2 * i], floats.lane[2 * i + 1]);
    }
    *reinterpret_cast<Line<unsigned, WIDTH / 2>*>(target) = words;
  }
}
