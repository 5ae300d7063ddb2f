// A number as parts that tensor cores multiply: FP16 or BF16 numbers, each what those before leave.
#pragma once

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// A line's scale, 2^exponent, as two factors: one may be beyond 2^127.
struct Scale {
  float first, second;
  __device__ __forceinline__ explicit Scale(int exponent)
      : first(power_of_two(exponent / 2)), second(power_of_two(exponent - exponent / 2)) {}
  __device__ __forceinline__ float of(float x) const { return x * first * second; }
};

// Two neighbours in one register, the first in the lower half: rounded to FP16 or BF16, and back.
template <bool BF16>
__device__ __forceinline__ unsigned narrowed(float first, float second) {
  unsigned pair;
  if constexpr (BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
template <bool BF16>
__device__ __forceinline__ void widened(unsigned pair, float& first, float& second) {
  if constexpr (BF16) {
    first = __uint_as_float(pair << 16);
    second = __uint_as_float(pair & 0xffff0000u);
  } else {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
        : "=f"(first), "=f"(second) : "r"(pair));
  }
}

// The parts of two numbers, of which `scaled` is what they were multiplied to. Of an infinity or a NaN the first part is
// the same and others are zero. The first part of a number that is not zero is not zero either, so that its product with
// infinity is right; the next part takes away what that adds.
template <unsigned PARTS>
__device__ __forceinline__ void split(const float (&x)[2], const float (&scaled)[2], unsigned (&part)[PARTS]) {
  constexpr bool BF16 = PARTS == 3;
  float first, second;
  part[0] = narrowed<BF16>(scaled[0], scaled[1]);
  if ((part[0] & 0x7fffu) == 0 && x[0] != 0.0f) part[0] |= 1;
  if ((part[0] & 0x7fff0000u) == 0 && x[1] != 0.0f) part[0] |= 0x10000u;
  widened<BF16>(part[0], first, second);
  float left[2] = {scaled[0] - first, scaled[1] - second};
  if (!(fabsf(scaled[0]) <= 0x1.fffffep127f)) left[0] = 0.0f;
  if (!(fabsf(scaled[1]) <= 0x1.fffffep127f)) left[1] = 0.0f;
#pragma unroll
  for (unsigned p = 1; p < PARTS; ++p) {
    part[p] = narrowed<BF16>(left[0], left[1]);
    widened<BF16>(part[p], first, second);
    left[0] -= first;
    left[1] -= second;
  }
}

// The FP16 parts of eight finite numbers times `factor`. The first part of a number below 2^-25 is zero.
__device__ __forceinline__ void split_usual(const float (&x)[8], float factor, uint4& high, uint4& low) {
  unsigned words[2][4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    float first, second;
    words[0][i] = narrowed<false>(x[2 * i] * factor, x[2 * i + 1] * factor);
    widened<false>(words[0][i], first, second);
    words[1][i] = narrowed<false>(fmaf(x[2 * i], factor, -first), fmaf(x[2 * i + 1], factor, -second));
  }
  high = make_uint4(words[0][0], words[0][1], words[0][2], words[0][3]);
  low = make_uint4(words[1][0], words[1][1], words[1][2], words[1][3]);
}
