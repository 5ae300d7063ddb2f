// Warpgroup products of compute capability 9.0 with both operands in shared memory, each along k or across it (PTX ISA,
// "wgmma.mma_async"): 64 x TILE_N sums in the registers of 128 threads += 64 x 16 times 16 x TILE_N numbers of FP16 or
// BF16. For sm_90a only.
#pragma once
#include "ptx/warpgroup.cuh"
#ifndef TILE_N
#define TILE_N 256   // columns of a tile: 64, 128, 192 or 256, the n of the instruction
#endif

constexpr unsigned SUMS = TILE_N / 2;   // of a thread, in a block of 64 rows

// An instruction names each of its registers: the sums %0 to %(SUMS - 1), then both tiles' descriptors, whether to add to
// the sums, and whether A and B lie across k.
#define NUMBERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_64 \
  NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_96 \
  NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_128 \
  NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(i) \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), \
  "+f"(sum[i + 4]), "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define PRODUCTS_OF(shape, types, numbers, a, b, add, across_a, across_b) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
  "wgmma.mma_async.sync.aligned." shape "k16.f32." types " {" numbers "}, %" a ", %" b ", p, 1, 1, %" across_a ", %" \
  across_b ";\n}\n"
#if TILE_N == 64
#define PRODUCTS(types) PRODUCTS_OF("m64n64", types, NUMBERS_32, "32", "33", "34", "35", "36")
#define ALL_SUMS SUMS_32(0)
#elif TILE_N == 128
#define PRODUCTS(types) PRODUCTS_OF("m64n128", types, NUMBERS_64, "64", "65", "66", "67", "68")
#define ALL_SUMS SUMS_32(0), SUMS_32(32)
#elif TILE_N == 192
#define PRODUCTS(types) PRODUCTS_OF("m64n192", types, NUMBERS_96, "96", "97", "98", "99", "100")
#define ALL_SUMS SUMS_32(0), SUMS_32(32), SUMS_32(64)
#elif TILE_N == 256
#define PRODUCTS(types) PRODUCTS_OF("m64n256", types, NUMBERS_128, "128", "129", "130", "131", "132")
#define ALL_SUMS SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96)
#endif

// sum += a * b over 16 k, of BF16 numbers or of FP16; without `add`, sum = a * b.
template <bool BF16, bool ACROSS_A, bool ACROSS_B>
__device__ __forceinline__ void wgmma_k16(
    float (&sum)[SUMS], unsigned long long a, unsigned long long b, unsigned add) {
  if constexpr (BF16) {
    asm volatile(PRODUCTS("bf16.bf16") : ALL_SUMS : "l"(a), "l"(b), "r"(add), "n"(int(ACROSS_A)), "n"(int(ACROSS_B)));
  } else {
    asm volatile(PRODUCTS("f16.f16") : ALL_SUMS : "l"(a), "l"(b), "r"(add), "n"(int(ACROSS_A)), "n"(int(ACROSS_B)));
  }
}

// Waits for all groups but the last so many.
template <unsigned PENDING>
__device__ __forceinline__ void warpgroup_wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Names the sums, so that the compiler reads them only after the wait before.
__device__ __forceinline__ void fence_sums(float (&sum)[SUMS]) { asm volatile("" : ALL_SUMS::"memory"); }
