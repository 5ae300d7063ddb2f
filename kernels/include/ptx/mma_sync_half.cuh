// Products of a warp on tensor cores in types of 16 bits (PTX ISA, "mma.sync"; compute capability 8.0):
// sum += a b, 16 x 8 sums of 16 terms, in float. Lane 4 g + t holds of a the terms 2 t and 2 t + 1 of rows g and g + 8,
// then those 8 behind them, of b the same terms of column g; of the sums columns 2 t and 2 t + 1, first those of row g,
// then those of row g + 8.
#pragma once

template <bool IS_BFLOAT16>
__device__ __forceinline__ void mma_m16n8k16(
    float& sum0, float& sum1, float& sum2, float& sum3, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (IS_BFLOAT16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum0), "+f"(sum1), "+f"(sum2), "+f"(sum3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum0), "+f"(sum1), "+f"(sum2), "+f"(sum3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
