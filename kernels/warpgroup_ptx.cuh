// What tensor_sm90.cu does by single instructions beside copies (async_copy.cuh), barriers (mbarrier.cuh) and products
// (wgmma.cuh). Addresses are those of shared memory; BEHIND is a constant distance from them, which ends up inside the
// instruction.

// The same as copy_async with the number of bytes that are there, 0 to 16; the rest becomes zero.
__device__ __forceinline__ void copy_async_some(unsigned target, const void* source, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes));
}
__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Reads and writes of one, two or four neighbours.
template <unsigned BEHIND = 0>
__device__ __forceinline__ void read_one(float& x, unsigned address) {
  asm volatile("ld.shared.f32 %0, [%1 + %2];" : "=f"(x) : "r"(address), "n"(BEHIND) : "memory");
}
__device__ __forceinline__ void read_two(float& x, float& y, unsigned address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
__device__ __forceinline__ float4 read_four(unsigned address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
  return x;
}
template <unsigned BEHIND>
__device__ __forceinline__ void write_one(unsigned address, float x) {
  asm volatile("st.shared.f32 [%0 + %2], %1;" ::"r"(address), "f"(x), "n"(BEHIND) : "memory");
}
__device__ __forceinline__ void write_four(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Four 8 x 16 byte matrices, whose lines the warp's threads name, eight each: a thread gets of each the word lane % 4
// of line lane / 4.
__device__ __forceinline__ void read_matrices(float (&x)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(address) : "memory");
}

// To the nearest BF16: two in one register, the first in its lower half; or one, written.
__device__ __forceinline__ unsigned pack_bf16(float first, float second) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}
template <unsigned BEHIND>
__device__ __forceinline__ void write_bf16(unsigned address, float x) {
  unsigned short rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  asm volatile("st.shared.b16 [%0 + %2], %1;" ::"r"(address), "h"(rounded), "n"(BEHIND) : "memory");
}

// A warpgroup's registers, of which all that a block was launched with can be moved between its warpgroups.
template <unsigned REGISTERS>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <unsigned REGISTERS>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// The thread's number read anew, so that no register holds it, or what follows from it, before.
__device__ __forceinline__ unsigned thread_number() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// A value that is computed here, neither earlier nor later.
__device__ __forceinline__ void pin(unsigned& value) { asm volatile("" : "+r"(value)); }
