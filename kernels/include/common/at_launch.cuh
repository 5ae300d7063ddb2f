// An axis whose size the launch gives instead of the compiler: one code for every size. `AT_LAUNCH` is then a macro, by which
// the kernel's function has one more parameter behind its arguments (SIZE_PARAMETER); its value is the parameter's name in PTX.
//
// Headers ask for the size where they need it, as they would read a constant: it lies in constant memory with all other
// parameters, so that asking costs no register that must be kept. PTX has the name in the whole body of the function, and
// every function here is inlined into that.
#pragma once

#ifdef AT_LAUNCH
#define SIZE_PARAMETER , const unsigned size_of_launch
#define PTX_NAME_(name) #name
#define PTX_NAME(name) PTX_NAME_(name)
__device__ __forceinline__ unsigned size_at_launch() {
#ifdef HOST_SIZE_AT_LAUNCH
  return HOST_SIZE_AT_LAUNCH;
#else
  unsigned size;
  asm("ld.param.u32 %0, [" PTX_NAME(AT_LAUNCH) "];" : "=r"(size));
  return size;
#endif
}

// Bytes for counters at the start of a workspace that all sizes share: they are zero between launches, and nothing else lies
// there, whatever the size.
#define SHARED_COUNTER_BYTES (1u << 16)
#else
#define SIZE_PARAMETER
#endif
