// Warpgroup products of compute capability 9.0 with few columns, both operands in shared memory, the first along k or across
// it, the second along k (PTX ISA, "wgmma.mma_async"): 64 x 2 SUMS sums in the registers of 128 threads += 64 x 16 times
// 16 x 2 SUMS numbers of FP16 or BF16. For sm_90a only.
#pragma once
#include "ptx/warpgroup.cuh"

// An instruction names each of its registers: the sums, then both tiles' descriptors, whether to add to the sums, and
// whether the first operand lies across k.
#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 4)
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 NAMES_4 ", %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define START_PRODUCT(shape, types, names, a, b, add, across, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
               "wgmma.mma_async.sync.aligned." shape "k16.f32." types " {" names "}, %" a ", %" b ", p, 1, 1, %" across \
               ", 0;\n}\n" \
               : __VA_ARGS__ : "l"(first), "l"(second), "r"(add_to), "n"(int(ACROSS)))
#define START_PRODUCTS(types) \
  if constexpr (SUMS == 4) START_PRODUCT("m64n8", types, NAMES_4, "4", "5", "6", "7", SUMS_4(0)); \
  else if constexpr (SUMS == 8) START_PRODUCT("m64n16", types, NAMES_8, "8", "9", "10", "11", SUMS_8(0)); \
  else if constexpr (SUMS == 16) START_PRODUCT("m64n32", types, NAMES_16, "16", "17", "18", "19", SUMS_16(0)); \
  else START_PRODUCT("m64n64", types, NAMES_32, "32", "33", "34", "35", SUMS_16(0), SUMS_16(16))

// sum += first * second over 16 k, of BF16 numbers or of FP16; without `add_to`, sum = first * second.
template <bool BF16, bool ACROSS, unsigned SUMS>
__device__ __forceinline__ void wgmma_k16(
    float (&sum)[SUMS], unsigned long long first, unsigned long long second, unsigned add_to) {
  static_assert(SUMS == 4 || SUMS == 8 || SUMS == 16 || SUMS == 32, "there are instructions of 8 to 64 columns");
  if constexpr (BF16) {
    START_PRODUCTS("bf16.bf16");
  } else {
    START_PRODUCTS("f16.f16");
  }
}

// Waits for all groups but the last so many.
template <unsigned PENDING>
__device__ __forceinline__ void warpgroup_wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Names the sums, so that the compiler reads them only after the wait before.
template <unsigned SUMS>
__device__ __forceinline__ void fence_sums(float (&sum)[SUMS]) {
#pragma unroll
  for (unsigned i = 0; i < SUMS; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}
