// Addresses of shared memory, the 32-bit ones of its own address space, and reads and writes by them. BEHIND is a
// constant distance, which ends up inside the instruction.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <unsigned BEHIND = 0>
__device__ __forceinline__ void ld_shared(float& x, unsigned address) {
  asm volatile("ld.shared.f32 %0, [%1 + %2];" : "=f"(x) : "r"(address), "n"(BEHIND) : "memory");
}
__device__ __forceinline__ void ld_shared_v2(float& x, float& y, unsigned address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
__device__ __forceinline__ float4 ld_shared_v4(unsigned address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ uint4 ld_shared_b128(unsigned address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

template <unsigned BEHIND>
__device__ __forceinline__ void st_shared(unsigned address, float x) {
  asm volatile("st.shared.f32 [%0 + %2], %1;" ::"r"(address), "f"(x), "n"(BEHIND) : "memory");
}
__device__ __forceinline__ void st_shared_v2(unsigned address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
template <unsigned BEHIND>
__device__ __forceinline__ void st_shared_b16(unsigned address, unsigned short x) {
  asm volatile("st.shared.b16 [%0 + %2], %1;" ::"r"(address), "h"(x), "n"(BEHIND) : "memory");
}
__device__ __forceinline__ void st_shared_v4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Four 8 x 16 byte matrices, whose lines the warp's threads name, eight each: a thread gets of each the word lane % 4
// of line lane / 4.
__device__ __forceinline__ void ldmatrix_x4(float (&x)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(address) : "memory");
}
