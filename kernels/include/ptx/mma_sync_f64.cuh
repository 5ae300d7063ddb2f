// Products of a warp on tensor cores in FP64 (PTX ISA, "mma.sync"): sum += a b, 16 x 8 sums of TERMS
// terms, 4 or 8. Lane 4 g + t holds, of term 4 i + t, rows g and g + 8 of a as a[2 i] and a[2 i + 1] and column g of
// b as b[i]; of the sums columns 2 t and 2 t + 1, first those of row g, then those of row g + 8. The arithmetic is
// FMAs', infinities, NaN and subnormal numbers included. One instruction on compute capability 9.0; 8.0 has only
// that of 8 x 8 sums of 4 terms.
#pragma once

__device__ __forceinline__ void mma_m8n8k4_f64(double& sum0, double& sum1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum0), "+d"(sum1) : "d"(a), "d"(b));
}

template <unsigned TERMS>
__device__ __forceinline__ void mma_m16n8_f64(
    double& sum0, double& sum1, double& sum2, double& sum3, const double (&a)[TERMS / 2], const double (&b)[TERMS / 4]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (TERMS == 4) {
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(sum0), "+d"(sum1), "+d"(sum2), "+d"(sum3) : "d"(a[0]), "d"(a[1]), "d"(b[0]));
  } else {
    static_assert(TERMS == 8, "4 or 8 terms");
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(sum0), "+d"(sum1), "+d"(sum2), "+d"(sum3)
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
  }
#else
#pragma unroll
  for (unsigned i = 0; i < TERMS / 4; ++i) {
    mma_m8n8k4_f64(sum0, sum1, a[2 * i], b[i]);
    mma_m8n8k4_f64(sum2, sum3, a[2 * i + 1], b[i]);
  }
#endif
}
