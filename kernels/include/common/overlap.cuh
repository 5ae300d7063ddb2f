// How a kernel begins whose launch may start while the launch before it on the stream still runs (`Launch.overlaps`):
// blocks take their places on the multiprocessors ahead of time, so that back-to-back launches have no gap between them.
#pragma once
#include "ptx/dependent_launch.cuh"

// Comes first, in every thread: lets the next launch do the same. Nothing where the device has no such launches.
__device__ __forceinline__ void admit_next_launch() {
#if __CUDA_ARCH__ >= 900
  launch_dependents();
#endif
}

// Comes before all that reads or writes memory, in every thread: waits until the launch before is over and all that it
// wrote can be seen.
__device__ __forceinline__ void await_last_launch() {
#if __CUDA_ARCH__ >= 900
  wait_for_launch_before();
#endif
}

__device__ __forceinline__ void begin_overlapped() {
  admit_next_launch();
  await_last_launch();
}
