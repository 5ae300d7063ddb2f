// Y = act(Y + b) in place: what a layer still needs after the library's product. Y: M x N row-major, b: N.
// A thread takes RUN_WIDTH neighbours of a row at a time and steps over the whole of Y; any grid and block of one axis.
// The activation is the layer's own, so that both compute the same function.
#include "../../kernels/linear/activation.cuh"
#ifndef SHAPE_M
#define SHAPE_M 256
#define SHAPE_N 512
#endif
#ifndef RUN_WIDTH
#define RUN_WIDTH 1   // 16 bytes of Y where rows divide into them
#endif

struct alignas(RUN_WIDTH * sizeof(REAL)) Run { REAL at[RUN_WIDTH]; };

extern "C" __global__ void add_bias_activate(const REAL* __restrict__ b, REAL* __restrict__ Y) {
  constexpr unsigned RUNS = SHAPE_N / RUN_WIDTH;   // of a row
  constexpr size_t COUNT = size_t(SHAPE_M) * RUNS;
  const size_t step = size_t(gridDim.x) * blockDim.x;
  const Run* bias = reinterpret_cast<const Run*>(b);
  Run* runs = reinterpret_cast<Run*>(Y);
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < COUNT; i += step) {
    Run run = runs[i];
    const Run added = bias[i % RUNS];
#pragma unroll
    for (int e = 0; e < RUN_WIDTH; ++e) run.at[e] = activate(run.at[e] + added.at[e]);
    runs[i] = run;
  }
}
