// bfloat16 and float16: numbers of 16 bits that are stored and moved. They become floats when they are used, exactly, and
// floats become them, rounded to nearest even. So a product of two is a float, and a sum of products is made in float.
//
// They need no header of the toolkit, which NVRTC alone does not have, and which costs a compilation some 0.1 s.
#pragma once

namespace tw {

#ifdef __CUDA_ARCH__
__device__ __forceinline__ float float_of_float16(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ __forceinline__ unsigned short float16_of_float(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ unsigned short bfloat16_of_float(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
#else
__device__ __forceinline__ float float_of_float16(unsigned short bits) { return host_float_of_float16(bits); }
__device__ __forceinline__ unsigned short float16_of_float(float x) { return host_float16_of_float(x); }
__device__ __forceinline__ unsigned short bfloat16_of_float(float x) { return host_bfloat16_of_float(x); }
#endif

struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  __device__ __forceinline__ bfloat16(float x) : bits(bfloat16_of_float(x)) {}
  __device__ __forceinline__ operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};

struct float16 {
  unsigned short bits;
  float16() = default;
  __device__ __forceinline__ float16(float x) : bits(float16_of_float(x)) {}
  __device__ __forceinline__ operator float() const { return float_of_float16(bits); }
};

}  // namespace tw
