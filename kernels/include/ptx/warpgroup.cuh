// What a warpgroup, 128 threads, does as a whole beside products (wgmma.cuh). Compute capability 9.0.
#pragma once

// A warpgroup's registers, of which all that a block was launched with can be moved between its warpgroups.
template <unsigned REGISTERS>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <unsigned REGISTERS>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Before the first product, after registers that products read or add to were written.
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of products that the warpgroup has started since the last call.
__device__ __forceinline__ void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for all threads of this warpgroup, which is the block's `warpgroup`-th, at a named barrier.
__device__ __forceinline__ void warpgroup_sync(unsigned warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");   // 0 is that of __syncthreads
}

// The same, and whether the predicate holds in any of them.
__device__ __forceinline__ bool warpgroup_any(unsigned warpgroup, bool predicate) {
  unsigned any;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %2, 0;\nbar.red.or.pred q, %1, 128, p;\nselp.u32 %0, 1, 0, q;\n}\n"
               : "=r"(any) : "r"(1 + warpgroup), "r"(static_cast<unsigned>(predicate)) : "memory");
  return any != 0;
}

// Waits for all threads of the first two warpgroups.
__device__ __forceinline__ void two_warpgroups_sync() { asm volatile("bar.sync 3, 256;" ::: "memory"); }

// The thread's number read anew, so that no register holds it, or what follows from it, before.
__device__ __forceinline__ unsigned read_tid_x() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// A value that is computed here, neither earlier nor later.
__device__ __forceinline__ void fence_operand(unsigned& value) { asm volatile("" : "+r"(value)); }
