// Warpgroup products of compute capability 9.0 with 64 columns, the first operand in registers, the second in shared memory
// along k or across it (PTX ISA, "wgmma.mma_async"): 64 x 64 sums in the registers of 128 threads += 64 x 16 times 16 x 64
// numbers of FP16. For sm_90a only.
#pragma once
#include "ptx/wgmma_half_narrow.cuh"

// sum += first * second; without `add_to`, sum = first * second. A thread has of the first operand pairs along k: of rows
// lane / 4 and 8 on, from 2 (lane % 4) on, then of both rows 8 k on.
template <bool ACROSS>
__device__ __forceinline__ void wgmma_k16_columns_64(
    float (&sum)[32], const unsigned (&first)[4], unsigned long long second, unsigned add_to) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
               : SUMS_16(0), SUMS_16(16)
               : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "l"(second), "r"(add_to), "n"(int(ACROSS)));
}
