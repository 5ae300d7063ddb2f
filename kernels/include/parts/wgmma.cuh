// Warpgroup products of compute capability 9.0 with both operands in shared memory (PTX ISA, "wgmma.mma_async"): 64 x
// TILE_N sums in the registers of 128 threads += 64 x 16 times 16 x TILE_N numbers of FP16 or BF16. For sm_90a only.
#pragma once
#include "ptx/warpgroup.cuh"
#ifndef TILE_N
#define TILE_N 128   // columns of a tile
#endif

constexpr unsigned SUMS = TILE_N / 2;   // of a thread, in a block of 64 lines

// An instruction names each of its registers: the sums %0 to %(SUMS - 1), then both tiles' descriptors and whether to
// add to the sums.
#define NUMBERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_36 NUMBERS_32 ", %32, %33, %34, %35"
#define NUMBERS_48 \
  NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NUMBERS_64 \
  NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_72 NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NUMBERS_80 \
  NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NUMBERS_88 NUMBERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NUMBERS_96 NUMBERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_104 NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 4)
#define SUMS_32 SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
#define SUMS_36 SUMS_32, SUMS_4(32)
#define SUMS_48 SUMS_32, SUMS_8(32), SUMS_8(40)
#define SUMS_64 SUMS_48, SUMS_8(48), SUMS_8(56)
#define SUMS_72 SUMS_64, SUMS_8(64)
#define SUMS_80 SUMS_72, SUMS_8(72)
#define SUMS_88 SUMS_80, SUMS_8(80)
#define SUMS_96 SUMS_88, SUMS_8(88)
#define SUMS_104 SUMS_96, SUMS_8(96)
#define PRODUCTS_OF(shape, types, numbers, a, b, add) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
  "wgmma.mma_async.sync.aligned." shape "k16.f32." types " {" numbers "}, %" a ", %" b ", p, 1, 1, 0, 0;\n}\n"
#if TILE_N == 64
#define PRODUCTS(types) PRODUCTS_OF("m64n64", types, NUMBERS_32, "32", "33", "34")
#define ALL_SUMS SUMS_32
#elif TILE_N == 72
#define PRODUCTS(types) PRODUCTS_OF("m64n72", types, NUMBERS_36, "36", "37", "38")
#define ALL_SUMS SUMS_36
#elif TILE_N == 96
#define PRODUCTS(types) PRODUCTS_OF("m64n96", types, NUMBERS_48, "48", "49", "50")
#define ALL_SUMS SUMS_48
#elif TILE_N == 128
#define PRODUCTS(types) PRODUCTS_OF("m64n128", types, NUMBERS_64, "64", "65", "66")
#define ALL_SUMS SUMS_64
#elif TILE_N == 144
#define PRODUCTS(types) PRODUCTS_OF("m64n144", types, NUMBERS_72, "72", "73", "74")
#define ALL_SUMS SUMS_72
#elif TILE_N == 160
#define PRODUCTS(types) PRODUCTS_OF("m64n160", types, NUMBERS_80, "80", "81", "82")
#define ALL_SUMS SUMS_80
#elif TILE_N == 176
#define PRODUCTS(types) PRODUCTS_OF("m64n176", types, NUMBERS_88, "88", "89", "90")
#define ALL_SUMS SUMS_88
#elif TILE_N == 192
#define PRODUCTS(types) PRODUCTS_OF("m64n192", types, NUMBERS_96, "96", "97", "98")
#define ALL_SUMS SUMS_96
#elif TILE_N == 208
#define PRODUCTS(types) PRODUCTS_OF("m64n208", types, NUMBERS_104, "104", "105", "106")
#define ALL_SUMS SUMS_104
#endif

// sum += a * b over 16 k, of FP16 numbers or (BF16) of BF16; without `add`, sum = a * b.
template <bool BF16>
__device__ __forceinline__ void wgmma_k16(
    float (&sum)[SUMS], unsigned long long a, unsigned long long b, unsigned add) {
  if constexpr (BF16) asm volatile(PRODUCTS("bf16.bf16") : ALL_SUMS : "l"(a), "l"(b), "r"(add));
  else asm volatile(PRODUCTS("f16.f16") : ALL_SUMS : "l"(a), "l"(b), "r"(add));
}

// Waits for all groups but the last.
__device__ __forceinline__ void warpgroup_wait_all_but_last() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// Waits for all groups. It names the sums, so that the compiler reads them only after it.
__device__ __forceinline__ void warpgroup_wait(float (&sum)[SUMS]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : ALL_SUMS::"memory");
}
