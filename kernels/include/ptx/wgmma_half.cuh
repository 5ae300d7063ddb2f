// Warpgroup products of compute capability 9.0 with both operands in shared memory, each along k or across it (PTX ISA,
// "wgmma.mma_async"): 64 x TILE_N sums in the registers of 128 threads += 64 x 16 times 16 x TILE_N numbers of FP16 or
// BF16. For sm_90a only.
#pragma once
#include "ptx/warpgroup.cuh"
#ifndef TILE_N
#define TILE_N 256   // columns of a tile, the n of the instruction
#endif

constexpr unsigned SUMS = TILE_N / 2;   // of a thread, in a block of 64 rows

// An instruction names each of its registers: the sums %0 to %(SUMS - 1), then both tiles' descriptors, whether to add to
// the sums, and whether A and B lie across k.
#define NUMBERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_36 NUMBERS_32 ", %32, %33, %34, %35"
#define NUMBERS_40 NUMBERS_36 ", %36, %37, %38, %39"
#define NUMBERS_48 NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NUMBERS_56 NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NUMBERS_64 NUMBERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_68 NUMBERS_64 ", %64, %65, %66, %67"
#define NUMBERS_72 NUMBERS_68 ", %68, %69, %70, %71"
#define NUMBERS_80 NUMBERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NUMBERS_88 NUMBERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NUMBERS_96 NUMBERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_104 NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NUMBERS_112 NUMBERS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NUMBERS_128 NUMBERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 4)
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define FIRST_32 SUMS_16(0), SUMS_16(16)
#define FIRST_36 FIRST_32, SUMS_4(32)
#define FIRST_40 FIRST_36, SUMS_4(36)
#define FIRST_48 FIRST_40, SUMS_8(40)
#define FIRST_56 FIRST_48, SUMS_8(48)
#define FIRST_64 FIRST_56, SUMS_8(56)
#define FIRST_68 FIRST_64, SUMS_4(64)
#define FIRST_72 FIRST_68, SUMS_4(68)
#define FIRST_80 FIRST_72, SUMS_8(72)
#define FIRST_88 FIRST_80, SUMS_8(80)
#define FIRST_96 FIRST_88, SUMS_8(88)
#define FIRST_104 FIRST_96, SUMS_8(96)
#define FIRST_112 FIRST_104, SUMS_8(104)
#define FIRST_128 FIRST_112, SUMS_16(112)
#define PRODUCTS_OF(shape, types, numbers, a, b, add, across_a, across_b) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
  "wgmma.mma_async.sync.aligned." shape "k16.f32." types " {" numbers "}, %" a ", %" b ", p, 1, 1, %" across_a ", %" \
  across_b ";\n}\n"
#if TILE_N == 64
#define PRODUCTS(types) PRODUCTS_OF("m64n64", types, NUMBERS_32, "32", "33", "34", "35", "36")
#define ALL_SUMS FIRST_32
#elif TILE_N == 72
#define PRODUCTS(types) PRODUCTS_OF("m64n72", types, NUMBERS_36, "36", "37", "38", "39", "40")
#define ALL_SUMS FIRST_36
#elif TILE_N == 80
#define PRODUCTS(types) PRODUCTS_OF("m64n80", types, NUMBERS_40, "40", "41", "42", "43", "44")
#define ALL_SUMS FIRST_40
#elif TILE_N == 96
#define PRODUCTS(types) PRODUCTS_OF("m64n96", types, NUMBERS_48, "48", "49", "50", "51", "52")
#define ALL_SUMS FIRST_48
#elif TILE_N == 112
#define PRODUCTS(types) PRODUCTS_OF("m64n112", types, NUMBERS_56, "56", "57", "58", "59", "60")
#define ALL_SUMS FIRST_56
#elif TILE_N == 128
#define PRODUCTS(types) PRODUCTS_OF("m64n128", types, NUMBERS_64, "64", "65", "66", "67", "68")
#define ALL_SUMS FIRST_64
#elif TILE_N == 136
#define PRODUCTS(types) PRODUCTS_OF("m64n136", types, NUMBERS_68, "68", "69", "70", "71", "72")
#define ALL_SUMS FIRST_68
#elif TILE_N == 144
#define PRODUCTS(types) PRODUCTS_OF("m64n144", types, NUMBERS_72, "72", "73", "74", "75", "76")
#define ALL_SUMS FIRST_72
#elif TILE_N == 160
#define PRODUCTS(types) PRODUCTS_OF("m64n160", types, NUMBERS_80, "80", "81", "82", "83", "84")
#define ALL_SUMS FIRST_80
#elif TILE_N == 176
#define PRODUCTS(types) PRODUCTS_OF("m64n176", types, NUMBERS_88, "88", "89", "90", "91", "92")
#define ALL_SUMS FIRST_88
#elif TILE_N == 192
#define PRODUCTS(types) PRODUCTS_OF("m64n192", types, NUMBERS_96, "96", "97", "98", "99", "100")
#define ALL_SUMS FIRST_96
#elif TILE_N == 208
#define PRODUCTS(types) PRODUCTS_OF("m64n208", types, NUMBERS_104, "104", "105", "106", "107", "108")
#define ALL_SUMS FIRST_104
#elif TILE_N == 224
#define PRODUCTS(types) PRODUCTS_OF("m64n224", types, NUMBERS_112, "112", "113", "114", "115", "116")
#define ALL_SUMS FIRST_112
#elif TILE_N == 256
#define PRODUCTS(types) PRODUCTS_OF("m64n256", types, NUMBERS_128, "128", "129", "130", "131", "132")
#define ALL_SUMS FIRST_128
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
