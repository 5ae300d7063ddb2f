// Y = act(conv(X, W) + b); problem.cuh has the layouts.
//
// A thread an element of Y, straight from global memory: the sum over taps and channels as it is written, zeros around
// the image included. It computes every convolution, and others are measured against it.
//   block (THREADS): one axis, neighbours in memory
//   grid  (elements / THREADS, rounded up): one axis
#include "conv/patches.cuh"
#include "epilogue.cuh"
#include "problem.cuh"
#ifndef THREADS
#define THREADS 256
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
conv2d(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER) {
  constexpr unsigned DEPTH = DEPTHWISE ? 1 : CHANNELS;   // channels that a filter sees
  const size_t element = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (element >= static_cast<size_t>(M) * OUT_CHANNELS) return;
  const unsigned plane = static_cast<unsigned>(element / OUT_PIXELS);   // with LAYOUT_NCHW
  const unsigned filter = IS_NHWC ? static_cast<unsigned>(element % OUT_CHANNELS) : plane % OUT_CHANNELS;
  const unsigned pixel = IS_NHWC ? static_cast<unsigned>(element / OUT_CHANNELS)
                                 : plane / OUT_CHANNELS * OUT_PIXELS + static_cast<unsigned>(element % OUT_PIXELS);
  const Corner corner(pixel);
  const REAL* w = W + static_cast<size_t>(filter) * (TAPS * DEPTH);
  REAL sum = 0;
  for (unsigned tap = 0; tap < TAPS; ++tap) {
    const int y = corner.y + static_cast<int>(tap / KERNEL_W * DILATION_H);
    const int x = corner.x + static_cast<int>(tap % KERNEL_W * DILATION_W);
    const bool is_there = is_on_image(y, x);
    for (unsigned channel = 0; channel < DEPTH; ++channel) {
      const unsigned at = IS_NHWC ? tap * DEPTH + channel : channel * TAPS + tap;
      const REAL pixel = is_there ? X[index_x(corner.image, y, x, DEPTHWISE ? filter / FILTERS : channel)] : REAL(0);
      sum += pixel * w[at];
    }
  }
  Y[element] = activate(sum + b[filter]);
}
