// How a kernel begins whose launch may start while the launch before it on the stream still runs (`Launch.overlaps`):
// blocks take their places on the multiprocessors ahead of time, so that back-to-back launches have no gap between them.
//
// The next launch does so when every block of this one has ended. A kernel may admit it earlier. That suits launches whose blocks
// leave no multiprocessor room for others; elsewhere blocks that wait fill up what is free, and the last of them crowd where room is
// made first (linear of 29 x 18944 x 3584 on an H200, launches behind one another: 48 us so, 35 if admitted at the end).
#pragma once
#include "ptx/dependent_launch.cuh"

// Lets the next launch begin, once every block has called this or ended. Nothing where the device has no such launches.
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
