// Warpgroup products of compute capability 9.0 (PTX ISA, "wgmma.mma_async"): 64 x TILE_S sums in the registers of 128
// threads += a 64 x k fragment from registers times a k x TILE_S tile in shared memory. Compiled for sm_90a only.
// The tile in shared memory is K-major: a line of k for each of the TILE_S columns, 128 bytes a line, 16-byte chunks
// swizzled by the line's number within its eight.
#pragma once
#include "ptx/warpgroup.cuh"

#ifndef TILE_S
#define TILE_S 128   // 16, 32, 64, 96, 128, 192 or 256: the n of the instruction
#endif

constexpr unsigned SUMS = TILE_S / 2;   // of a thread, in a block of 64 lines

// An instruction names each of its registers: the sums %0 to %(SUMS - 1), then the fragment's four and the tile's
// address.
#define NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NUMBERS_16 NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NUMBERS_32 \
  NUMBERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_48 \
  NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NUMBERS_64 \
  NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_96 \
  NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
             ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_128 \
  NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
             ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(kind, sum, i) \
  kind(sum[i]), kind(sum[i + 1]), kind(sum[i + 2]), kind(sum[i + 3]), \
  kind(sum[i + 4]), kind(sum[i + 5]), kind(sum[i + 6]), kind(sum[i + 7])
#define SUMS_16(kind, sum, i) SUMS_8(kind, sum, i), SUMS_8(kind, sum, i + 8)
#define SUMS_32(kind, sum, i) SUMS_16(kind, sum, i), SUMS_16(kind, sum, i + 16)
#define SUMS_64(kind, sum, i) SUMS_32(kind, sum, i), SUMS_32(kind, sum, i + 32)

#if TILE_S == 16
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n16" depth ".f32." types " {" NUMBERS_8 "}, "
#define INPUTS "{%8, %9, %10, %11}, %12"
#define ALL_SUMS(kind, sum) SUMS_8(kind, sum, 0)
#elif TILE_S == 32
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n32" depth ".f32." types " {" NUMBERS_16 "}, "
#define INPUTS "{%16, %17, %18, %19}, %20"
#define ALL_SUMS(kind, sum) SUMS_16(kind, sum, 0)
#elif TILE_S == 64
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n64" depth ".f32." types " {" NUMBERS_32 "}, "
#define INPUTS "{%32, %33, %34, %35}, %36"
#define ALL_SUMS(kind, sum) SUMS_32(kind, sum, 0)
#elif TILE_S == 96
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n96" depth ".f32." types " {" NUMBERS_48 "}, "
#define INPUTS "{%48, %49, %50, %51}, %52"
#define ALL_SUMS(kind, sum) SUMS_32(kind, sum, 0), SUMS_16(kind, sum, 32)
#elif TILE_S == 128
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n128" depth ".f32." types " {" NUMBERS_64 "}, "
#define INPUTS "{%64, %65, %66, %67}, %68"
#define ALL_SUMS(kind, sum) SUMS_64(kind, sum, 0)
#elif TILE_S == 192
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n192" depth ".f32." types " {" NUMBERS_96 "}, "
#define INPUTS "{%96, %97, %98, %99}, %100"
#define ALL_SUMS(kind, sum) SUMS_64(kind, sum, 0), SUMS_32(kind, sum, 64)
#elif TILE_S == 256
#define INSTRUCTION(depth, types) "wgmma.mma_async.sync.aligned.m64n256" depth ".f32." types " {" NUMBERS_128 "}, "
#define INPUTS "{%128, %129, %130, %131}, %132"
#define ALL_SUMS(kind, sum) SUMS_64(kind, sum, 0), SUMS_64(kind, sum, 64)
#endif
#define PREDICATED(value, instruction) "{\n.reg .pred p;\nsetp.ne.b32 p, " value ", 0;\n" instruction ";\n}\n"
#define TF32_PRODUCTS INSTRUCTION("k8", "tf32.tf32") INPUTS ", p, 1, 1"
#define BF16_PRODUCTS INSTRUCTION("k16", "bf16.bf16") INPUTS ", p, 1, 1, 0"
#define READ_AND_WRITTEN(x) "+f"(x)
#define WRITTEN(x) "=f"(x)

// Whether a product is added to what the sums hold (One) or takes its place (Zero).
enum class ScaleOut { Zero, One };

// sum = fragment * tile over 8 k in TF32, whose low 13 bits the tensor core ignores, + sum where SCALE is One.
template <ScaleOut SCALE>
__device__ __forceinline__ void wgmma_k8_tf32(
    float (&sum)[SUMS], const unsigned (&fragment)[4], unsigned long long descriptor) {
  if constexpr (SCALE == ScaleOut::Zero) {
    asm volatile(PREDICATED("0", TF32_PRODUCTS) : ALL_SUMS(WRITTEN, sum)
                 : "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3]), "l"(descriptor));
  } else {
    asm volatile(PREDICATED("1", TF32_PRODUCTS) : ALL_SUMS(READ_AND_WRITTEN, sum)
                 : "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3]), "l"(descriptor));
  }
}

// The same over 16 k in BF16.
template <ScaleOut SCALE>
__device__ __forceinline__ void wgmma_k16_bf16(
    float (&sum)[SUMS], const unsigned (&fragment)[4], unsigned long long descriptor) {
  if constexpr (SCALE == ScaleOut::Zero) {
    asm volatile(PREDICATED("0", BF16_PRODUCTS) : ALL_SUMS(WRITTEN, sum)
                 : "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3]), "l"(descriptor));
  } else {
    asm volatile(PREDICATED("1", BF16_PRODUCTS) : ALL_SUMS(READ_AND_WRITTEN, sum)
                 : "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3]), "l"(descriptor));
  }
}

// Waits for all products. It names the sums, so that the compiler reads them only after it.
__device__ __forceinline__ void warpgroup_wait(float (&sum)[SUMS]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : ALL_SUMS(READ_AND_WRITTEN, sum)::"memory");
}

// The matrix descriptor of a tile that starts at `address`, a multiple of eight lines, by PTX ISA, "Matrix Descriptor
// Format": address, the distance of eight lines, and the swizzle, of lines of 128 or 64 bytes. In units of 16 bytes, so
// that adding 2 to it goes 32 bytes along k.
template <unsigned LINE_BYTES = 128>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address) {
  static_assert(LINE_BYTES == 128 || LINE_BYTES == 64, "what the swizzles span");
  constexpr unsigned long long EIGHT_LINES = LINE_BYTES * 8 / 16, SWIZZLE = LINE_BYTES == 128 ? 1 : 2;
  return (address & 0x3ffff) / 16 | 1ull << 16 | EIGHT_LINES << 32 | SWIZZLE << 62;
}
