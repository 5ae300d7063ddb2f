// Y = act(Y + b) in place: what a layer still needs after the library's product. Y: rows x N x PIXELS row-major, b: N.
// A thread takes RUN_WIDTH neighbours of a row at a time and steps over the whole of Y; any grid and block of one axis.
// The activation is the layer's own, so that both compute the same function.
#include "../../kernels/include/common/activation.cuh"
#ifndef SHAPE_N
#define SHAPE_N 512
#endif
#ifndef SHAPE_PIXELS
#define SHAPE_PIXELS 1   // more than one where the channels of an image lie one behind the other
#endif
#ifndef RUN_WIDTH
#define RUN_WIDTH 1   // 16 bytes of Y where rows, or the pixels of a channel, divide into them
#endif

struct alignas(RUN_WIDTH * sizeof(REAL)) Run { REAL at[RUN_WIDTH]; };

extern "C" __global__ void add_bias_activate(const REAL* __restrict__ b, REAL* __restrict__ Y, size_t rows) {
  constexpr unsigned RUNS = SHAPE_PIXELS > 1 ? SHAPE_PIXELS / RUN_WIDTH : SHAPE_N / RUN_WIDTH;   // of a channel, of a row
  const size_t count = rows * (SHAPE_PIXELS > 1 ? SHAPE_N : 1) * RUNS;
  const size_t step = size_t(gridDim.x) * blockDim.x;
  const Run* bias = reinterpret_cast<const Run*>(b);
  Run* runs = reinterpret_cast<Run*>(Y);
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    Run run = runs[i];
    Run added;
    if (SHAPE_PIXELS > 1) {
#pragma unroll
      for (int e = 0; e < RUN_WIDTH; ++e) added.at[e] = b[i / RUNS % SHAPE_N];
    } else {
      added = bias[i % RUNS];
    }
#pragma unroll
    for (int e = 0; e < RUN_WIDTH; ++e) run.at[e] = activate(Sum(run.at[e]) + Sum(added.at[e]));
    runs[i] = run;
  }
}
