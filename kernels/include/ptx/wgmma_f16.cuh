// Warpgroup products of compute capability 9.0 with 8 to 128 columns in FP16 (PTX ISA, "wgmma.mma_async"): 64 x COLUMNS sums in
// the registers of 128 threads += 64 x 16 times 16 x COLUMNS numbers. The second operand is in shared memory, the first there
// too or in registers. For sm_90a only.
#pragma once
#include "ptx/warpgroup.cuh"

// An instruction names each of its registers: the sums first, then the operands and whether to add to the sums.
#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 NAMES_4 ", %4, %5, %6, %7"
#define NAMES_12 NAMES_8 ", %8, %9, %10, %11"
#define NAMES_16 NAMES_12 ", %12, %13, %14, %15"
#define NAMES_20 NAMES_16 ", %16, %17, %18, %19"
#define NAMES_24 NAMES_20 ", %20, %21, %22, %23"
#define NAMES_28 NAMES_24 ", %24, %25, %26, %27"
#define NAMES_32 NAMES_28 ", %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_40 NAMES_36 ", %36, %37, %38, %39"
#define NAMES_44 NAMES_40 ", %40, %41, %42, %43"
#define NAMES_48 NAMES_44 ", %44, %45, %46, %47"
#define NAMES_52 NAMES_48 ", %48, %49, %50, %51"
#define NAMES_56 NAMES_52 ", %52, %53, %54, %55"
#define NAMES_60 NAMES_56 ", %56, %57, %58, %59"
#define NAMES_64 NAMES_60 ", %60, %61, %62, %63"
#define SUMS_8 SUMS_4(0), SUMS_4(4)
#define SUMS_12 SUMS_8, SUMS_4(8)
#define SUMS_16 SUMS_12, SUMS_4(12)
#define SUMS_20 SUMS_16, SUMS_4(16)
#define SUMS_24 SUMS_20, SUMS_4(20)
#define SUMS_28 SUMS_24, SUMS_4(24)
#define SUMS_32 SUMS_28, SUMS_4(28)
#define SUMS_36 SUMS_32, SUMS_4(32)
#define SUMS_40 SUMS_36, SUMS_4(36)
#define SUMS_44 SUMS_40, SUMS_4(40)
#define SUMS_48 SUMS_44, SUMS_4(44)
#define SUMS_52 SUMS_48, SUMS_4(48)
#define SUMS_56 SUMS_52, SUMS_4(52)
#define SUMS_60 SUMS_56, SUMS_4(56)
#define SUMS_64 SUMS_60, SUMS_4(60)
#define SUMS_FIRST_4 SUMS_4(0)
#define PRODUCT_OF_SHARED(columns, count, sums, a, b, add) \
  if constexpr (COLUMNS == columns) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" NAMES_##count "}, %" a ", %" b \
                 ", p, 1, 1, 0, 0;\n}\n" \
                 : sums : "l"(first), "l"(second), "r"(add_to))
#define PRODUCT_OF_REGISTERS(columns, count, sums, w, x, y, z, b, add) \
  if constexpr (COLUMNS == columns) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" NAMES_##count "}, {%" w ", %" x ", %" y \
                 ", %" z "}, %" b ", p, 1, 1, 1;\n}\n" \
                 : sums : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "l"(second), "r"(add_to))

// sum += first * second over 16 k; without `add_to`, sum = first * second. Both lie along k.
template <unsigned COLUMNS>
__device__ __forceinline__ void wgmma_k16_shared(
    float (&sum)[COLUMNS / 2], unsigned long long first, unsigned long long second, unsigned add_to) {
  static_assert(COLUMNS % 8 == 0 && 8 <= COLUMNS && COLUMNS <= 128, "there are instructions of 8 to 128 columns here");
  PRODUCT_OF_SHARED(8, 4, SUMS_FIRST_4, "4", "5", "6");
  PRODUCT_OF_SHARED(16, 8, SUMS_8, "8", "9", "10");
  PRODUCT_OF_SHARED(24, 12, SUMS_12, "12", "13", "14");
  PRODUCT_OF_SHARED(32, 16, SUMS_16, "16", "17", "18");
  PRODUCT_OF_SHARED(40, 20, SUMS_20, "20", "21", "22");
  PRODUCT_OF_SHARED(48, 24, SUMS_24, "24", "25", "26");
  PRODUCT_OF_SHARED(56, 28, SUMS_28, "28", "29", "30");
  PRODUCT_OF_SHARED(64, 32, SUMS_32, "32", "33", "34");
  PRODUCT_OF_SHARED(72, 36, SUMS_36, "36", "37", "38");
  PRODUCT_OF_SHARED(80, 40, SUMS_40, "40", "41", "42");
  PRODUCT_OF_SHARED(88, 44, SUMS_44, "44", "45", "46");
  PRODUCT_OF_SHARED(96, 48, SUMS_48, "48", "49", "50");
  PRODUCT_OF_SHARED(104, 52, SUMS_52, "52", "53", "54");
  PRODUCT_OF_SHARED(112, 56, SUMS_56, "56", "57", "58");
  PRODUCT_OF_SHARED(120, 60, SUMS_60, "60", "61", "62");
  PRODUCT_OF_SHARED(128, 64, SUMS_64, "64", "65", "66");
}

// The same with the first operand in registers and the second across k. A thread has of the first pairs along k: of rows
// lane / 4 and 8 on, from 2 (lane % 4) on, then of both rows 8 k on.
template <unsigned COLUMNS>
__device__ __forceinline__ void wgmma_k16_registers(
    float (&sum)[COLUMNS / 2], const unsigned* first, unsigned long long second, unsigned add_to) {
  static_assert(COLUMNS % 8 == 0 && 8 <= COLUMNS && COLUMNS <= 128, "there are instructions of 8 to 128 columns here");
  PRODUCT_OF_REGISTERS(8, 4, SUMS_FIRST_4, "4", "5", "6", "7", "8", "9");
  PRODUCT_OF_REGISTERS(16, 8, SUMS_8, "8", "9", "10", "11", "12", "13");
  PRODUCT_OF_REGISTERS(24, 12, SUMS_12, "12", "13", "14", "15", "16", "17");
  PRODUCT_OF_REGISTERS(32, 16, SUMS_16, "16", "17", "18", "19", "20", "21");
  PRODUCT_OF_REGISTERS(40, 20, SUMS_20, "20", "21", "22", "23", "24", "25");
  PRODUCT_OF_REGISTERS(48, 24, SUMS_24, "24", "25", "26", "27", "28", "29");
  PRODUCT_OF_REGISTERS(56, 28, SUMS_28, "28", "29", "30", "31", "32", "33");
  PRODUCT_OF_REGISTERS(64, 32, SUMS_32, "32", "33", "34", "35", "36", "37");
  PRODUCT_OF_REGISTERS(72, 36, SUMS_36, "36", "37", "38", "39", "40", "41");
  PRODUCT_OF_REGISTERS(80, 40, SUMS_40, "40", "41", "42", "43", "44", "45");
  PRODUCT_OF_REGISTERS(88, 44, SUMS_44, "44", "45", "46", "47", "48", "49");
  PRODUCT_OF_REGISTERS(96, 48, SUMS_48, "48", "49", "50", "51", "52", "53");
  PRODUCT_OF_REGISTERS(104, 52, SUMS_52, "52", "53", "54", "55", "56", "57");
  PRODUCT_OF_REGISTERS(112, 56, SUMS_56, "56", "57", "58", "59", "60", "61");
  PRODUCT_OF_REGISTERS(120, 60, SUMS_60, "60", "61", "62", "63", "64", "65");
  PRODUCT_OF_REGISTERS(128, 64, SUMS_64, "64", "65", "66", "67", "68", "69");
}

// Waits for all groups but the last so many.
template <unsigned PENDING>
__device__ __forceinline__ void warpgroup_wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Names the sums, so that the compiler reads them only after the wait before.
template <unsigned COUNT>
__device__ __forceinline__ void fence_sums(float (&sum)[COUNT]) {
#pragma unroll
  for (unsigned i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}
