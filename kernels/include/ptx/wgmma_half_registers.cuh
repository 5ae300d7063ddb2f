// Warpgroup products of compute capability 9.0 with few columns, the first operand in registers, the second in shared memory
// along k (PTX ISA, "wgmma.mma_async"): 64 x 2 SUMS sums in the registers of 128 threads += 64 x 16 times 16 x 2 SUMS
// numbers of FP16 or BF16. For sm_90a only.
#pragma once
#include "ptx/wgmma_half_narrow.cuh"

#define START_PRODUCT_OF_REGISTERS(shape, types, names, a, b, add, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
               "wgmma.mma_async.sync.aligned." shape "k16.f32." types " {" names "}, {" a "}, %" b ", p, 1, 1, 0;\n}\n" \
               : __VA_ARGS__ : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "l"(second), "r"(add_to))
#define START_PRODUCTS_OF_REGISTERS(types) \
  if constexpr (SUMS == 4) { \
    START_PRODUCT_OF_REGISTERS("m64n8", types, NAMES_4, "%4, %5, %6, %7", "8", "9", SUMS_4(0)); \
  } else if constexpr (SUMS == 8) { \
    START_PRODUCT_OF_REGISTERS("m64n16", types, NAMES_8, "%8, %9, %10, %11", "12", "13", SUMS_8(0)); \
  } else if constexpr (SUMS == 16) { \
    START_PRODUCT_OF_REGISTERS("m64n32", types, NAMES_16, "%16, %17, %18, %19", "20", "21", SUMS_16(0)); \
  } else { \
    START_PRODUCT_OF_REGISTERS("m64n64", types, NAMES_32, "%32, %33, %34, %35", "36", "37", SUMS_16(0), SUMS_16(16)); \
  }

// sum += first * second over 16 k, of BF16 numbers or of FP16; without `add_to`, sum = first * second. A thread has of the
// first operand pairs along k: of rows lane / 4 and 8 on, from 2 (lane % 4) on, then of both rows 8 k on.
template <bool BF16, unsigned SUMS>
__device__ __forceinline__ void wgmma_k16(
    float (&sum)[SUMS], const unsigned (&first)[4], unsigned long long second, unsigned add_to) {
  static_assert(SUMS == 4 || SUMS == 8 || SUMS == 16 || SUMS == 32, "there are instructions of 8 to 64 columns");
  if constexpr (BF16) {
    START_PRODUCTS_OF_REGISTERS("bf16.bf16")
  } else {
    START_PRODUCTS_OF_REGISTERS("f16.f16")
  }
}
