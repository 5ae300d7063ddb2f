// Warpgroup products of compute capability 9.0 with any multiple of 8 columns, both operands in shared memory, each along k or
// across it (PTX ISA, "wgmma.mma_async"): 64 x WGMMA_COLUMNS sums in the registers of 128 threads += 64 x 16 times 16 x
// WGMMA_COLUMNS numbers of FP16 or BF16. For sm_90a only.
#pragma once
#include "ptx/warpgroup.cuh"
#ifndef WGMMA_COLUMNS
#define WGMMA_COLUMNS 64   // the n of the instruction: a number, since macros are named by it
#endif

constexpr unsigned SUMS = WGMMA_COLUMNS / 2;   // of a thread

// An instruction names each of its registers: the sums, then both tiles' descriptors, whether to add to the sums, and whether
// the operands lie across k.
#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_24 NAMES_16 ", %8, %9, %10, %11"
#define NAMES_32 NAMES_24 ", %12, %13, %14, %15"
#define NAMES_40 NAMES_32 ", %16, %17, %18, %19"
#define NAMES_48 NAMES_40 ", %20, %21, %22, %23"
#define NAMES_56 NAMES_48 ", %24, %25, %26, %27"
#define NAMES_64 NAMES_56 ", %28, %29, %30, %31"
#define NAMES_72 NAMES_64 ", %32, %33, %34, %35"
#define NAMES_80 NAMES_72 ", %36, %37, %38, %39"
#define NAMES_88 NAMES_80 ", %40, %41, %42, %43"
#define NAMES_96 NAMES_88 ", %44, %45, %46, %47"
#define NAMES_104 NAMES_96 ", %48, %49, %50, %51"
#define NAMES_112 NAMES_104 ", %52, %53, %54, %55"
#define NAMES_120 NAMES_112 ", %56, %57, %58, %59"
#define NAMES_128 NAMES_120 ", %60, %61, %62, %63"
#define NAMES_136 NAMES_128 ", %64, %65, %66, %67"
#define NAMES_144 NAMES_136 ", %68, %69, %70, %71"
#define NAMES_152 NAMES_144 ", %72, %73, %74, %75"
#define NAMES_160 NAMES_152 ", %76, %77, %78, %79"
#define NAMES_168 NAMES_160 ", %80, %81, %82, %83"
#define NAMES_176 NAMES_168 ", %84, %85, %86, %87"
#define NAMES_184 NAMES_176 ", %88, %89, %90, %91"
#define NAMES_192 NAMES_184 ", %92, %93, %94, %95"
#define NAMES_200 NAMES_192 ", %96, %97, %98, %99"
#define NAMES_208 NAMES_200 ", %100, %101, %102, %103"
#define NAMES_216 NAMES_208 ", %104, %105, %106, %107"
#define NAMES_224 NAMES_216 ", %108, %109, %110, %111"
#define NAMES_232 NAMES_224 ", %112, %113, %114, %115"
#define NAMES_240 NAMES_232 ", %116, %117, %118, %119"
#define NAMES_248 NAMES_240 ", %120, %121, %122, %123"
#define NAMES_256 NAMES_248 ", %124, %125, %126, %127"
#define FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define ADDED_8 FOUR(0)
#define ADDED_16 ADDED_8, FOUR(4)
#define ADDED_24 ADDED_16, FOUR(8)
#define ADDED_32 ADDED_24, FOUR(12)
#define ADDED_40 ADDED_32, FOUR(16)
#define ADDED_48 ADDED_40, FOUR(20)
#define ADDED_56 ADDED_48, FOUR(24)
#define ADDED_64 ADDED_56, FOUR(28)
#define ADDED_72 ADDED_64, FOUR(32)
#define ADDED_80 ADDED_72, FOUR(36)
#define ADDED_88 ADDED_80, FOUR(40)
#define ADDED_96 ADDED_88, FOUR(44)
#define ADDED_104 ADDED_96, FOUR(48)
#define ADDED_112 ADDED_104, FOUR(52)
#define ADDED_120 ADDED_112, FOUR(56)
#define ADDED_128 ADDED_120, FOUR(60)
#define ADDED_136 ADDED_128, FOUR(64)
#define ADDED_144 ADDED_136, FOUR(68)
#define ADDED_152 ADDED_144, FOUR(72)
#define ADDED_160 ADDED_152, FOUR(76)
#define ADDED_168 ADDED_160, FOUR(80)
#define ADDED_176 ADDED_168, FOUR(84)
#define ADDED_184 ADDED_176, FOUR(88)
#define ADDED_192 ADDED_184, FOUR(92)
#define ADDED_200 ADDED_192, FOUR(96)
#define ADDED_208 ADDED_200, FOUR(100)
#define ADDED_216 ADDED_208, FOUR(104)
#define ADDED_224 ADDED_216, FOUR(108)
#define ADDED_232 ADDED_224, FOUR(112)
#define ADDED_240 ADDED_232, FOUR(116)
#define ADDED_248 ADDED_240, FOUR(120)
#define ADDED_256 ADDED_248, FOUR(124)
#define INPUTS_8 "4", "5", "6", "7", "8"
#define INPUTS_16 "8", "9", "10", "11", "12"
#define INPUTS_24 "12", "13", "14", "15", "16"
#define INPUTS_32 "16", "17", "18", "19", "20"
#define INPUTS_40 "20", "21", "22", "23", "24"
#define INPUTS_48 "24", "25", "26", "27", "28"
#define INPUTS_56 "28", "29", "30", "31", "32"
#define INPUTS_64 "32", "33", "34", "35", "36"
#define INPUTS_72 "36", "37", "38", "39", "40"
#define INPUTS_80 "40", "41", "42", "43", "44"
#define INPUTS_88 "44", "45", "46", "47", "48"
#define INPUTS_96 "48", "49", "50", "51", "52"
#define INPUTS_104 "52", "53", "54", "55", "56"
#define INPUTS_112 "56", "57", "58", "59", "60"
#define INPUTS_120 "60", "61", "62", "63", "64"
#define INPUTS_128 "64", "65", "66", "67", "68"
#define INPUTS_136 "68", "69", "70", "71", "72"
#define INPUTS_144 "72", "73", "74", "75", "76"
#define INPUTS_152 "76", "77", "78", "79", "80"
#define INPUTS_160 "80", "81", "82", "83", "84"
#define INPUTS_168 "84", "85", "86", "87", "88"
#define INPUTS_176 "88", "89", "90", "91", "92"
#define INPUTS_184 "92", "93", "94", "95", "96"
#define INPUTS_192 "96", "97", "98", "99", "100"
#define INPUTS_200 "100", "101", "102", "103", "104"
#define INPUTS_208 "104", "105", "106", "107", "108"
#define INPUTS_216 "108", "109", "110", "111", "112"
#define INPUTS_224 "112", "113", "114", "115", "116"
#define INPUTS_232 "116", "117", "118", "119", "120"
#define INPUTS_240 "120", "121", "122", "123", "124"
#define INPUTS_248 "124", "125", "126", "127", "128"
#define INPUTS_256 "128", "129", "130", "131", "132"
#define JOINED_(name, number) name##number
#define JOINED(name, number) JOINED_(name, number)
#define TEXT_(number) #number
#define TEXT(number) TEXT_(number)
#define PRODUCT_(types, a, b, add, across_a, across_b) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" \
  "wgmma.mma_async.sync.aligned.m64n" TEXT(WGMMA_COLUMNS) "k16.f32." types " {" JOINED(NAMES_, WGMMA_COLUMNS) "}, %" a ", %" b \
  ", p, 1, 1, %" across_a ", %" across_b ";\n}\n"
#define PRODUCT(types, ...) PRODUCT_(types, __VA_ARGS__)
#define START_PRODUCT(types) \
  asm volatile(PRODUCT(types, JOINED(INPUTS_, WGMMA_COLUMNS)) : JOINED(ADDED_, WGMMA_COLUMNS) \
               : "l"(a), "l"(b), "r"(add), "n"(int(ACROSS_A)), "n"(int(ACROSS_B)))

// sum += a * b over 16 k, of BF16 numbers or of FP16; without `add`, sum = a * b.
template <bool BF16, bool ACROSS_A, bool ACROSS_B>
__device__ __forceinline__ void wgmma_k16(
    float (&sum)[SUMS], unsigned long long a, unsigned long long b, unsigned add) {
  if constexpr (BF16) START_PRODUCT("bf16.bf16");
  else START_PRODUCT("f16.f16");
}

// Waits for all groups but the last so many.
template <unsigned PENDING>
__device__ __forceinline__ void warpgroup_wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Names the sums, so that the compiler reads them only after the wait before.
__device__ __forceinline__ void fence_sums(float (&sum)[SUMS]) {
  asm volatile("" : JOINED(ADDED_, WGMMA_COLUMNS)::"memory");
}
