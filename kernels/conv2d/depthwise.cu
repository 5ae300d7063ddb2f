// Y = act(conv(X, W) + b), each channel by itself (DEPTHWISE); problem.cuh has the layouts.
//
// There is little to compute for each number, so memory is what takes the time. A thread computes RUN_H x RUN_W outputs of
// VECTOR_WIDTH neighbouring channels (one with LAYOUT_NCHW): what taps of neighbouring outputs share is read once along
// a row, and from the L1 cache down a column. Neighbouring threads have neighbouring channels, or with LAYOUT_NCHW
// neighbouring runs.
//   block (THREADS): one axis
//   grid  (threads needed / THREADS, rounded up): one axis
#include "conv/patches.cuh"
#include "epilogue.cuh"
#include "problem.cuh"
#ifndef THREADS
#define THREADS 128
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 1
#endif
#ifndef RUN_H
#define RUN_H 1
#endif
#ifndef RUN_W
#define RUN_W 4
#endif

constexpr unsigned RUNS_H = tw::ceil_div(OUT_H, unsigned{RUN_H}), RUNS_W = tw::ceil_div(OUT_W, unsigned{RUN_W});
constexpr unsigned VECTORS = OUT_CHANNELS / VECTOR_WIDTH;
constexpr unsigned SPAN = (RUN_W - 1) * STRIDE_W + DILATION_W * (KERNEL_W - 1) + 1;   // columns of X under a run

extern "C" __global__ void __launch_bounds__(THREADS)
conv2d(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER) {
  static_assert(VECTOR_WIDTH == 1 || (IS_NHWC && FILTERS == 1 && CHANNELS % VECTOR_WIDTH == 0), "vectors of channels");
  const size_t number = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (number >= static_cast<size_t>(IMAGES) * RUNS_H * RUNS_W * VECTORS) return;
  // Channels first with LAYOUT_NHWC, runs first without.
  const unsigned runs = static_cast<unsigned>(IS_NHWC ? number / VECTORS % (RUNS_H * RUNS_W) : number % (RUNS_H * RUNS_W));
  const unsigned channel =
      static_cast<unsigned>(IS_NHWC ? number % VECTORS : number / (RUNS_H * RUNS_W) % VECTORS) * VECTOR_WIDTH;
  const unsigned image = static_cast<unsigned>(number / (static_cast<size_t>(RUNS_H) * RUNS_W * VECTORS));
  const unsigned out_y = runs / RUNS_W * RUN_H, out_x = runs % RUNS_W * RUN_W;
  const int first_y = static_cast<int>(out_y * STRIDE_H) - static_cast<int>(PADDING_H);
  const int first_x = static_cast<int>(out_x * STRIDE_W) - static_cast<int>(PADDING_W);

  REAL sum[RUN_H][RUN_W][VECTOR_WIDTH] = {};
#pragma unroll
  for (unsigned r = 0; r < KERNEL_H; ++r) {
    REAL weight[KERNEL_W][VECTOR_WIDTH];
#pragma unroll
    for (unsigned s = 0; s < KERNEL_W; ++s) {
#pragma unroll
      for (unsigned v = 0; v < VECTOR_WIDTH; ++v) {
        weight[s][v] = W[static_cast<size_t>(channel + v) * TAPS + r * KERNEL_W + s];
      }
    }
#pragma unroll
    for (unsigned i = 0; i < RUN_H; ++i) {
      const int y = first_y + static_cast<int>(i * STRIDE_H + r * DILATION_H);
#pragma unroll
      for (unsigned j = 0; j < SPAN; ++j) {
        const int x = first_x + static_cast<int>(j);
        Pack<VECTOR_WIDTH> pixel = {};
        if (is_on_image(y, x)) {
          pixel = load_pack<VECTOR_WIDTH>(X + index_x(image, y, x, channel / FILTERS));
        }
#pragma unroll
        for (unsigned s = 0; s < KERNEL_W; ++s) {
          // Output `o` of the run has column o * STRIDE_W + s * DILATION_W under tap s.
          if (j < s * DILATION_W || (j - s * DILATION_W) % STRIDE_W != 0) continue;
          const unsigned o = (j - s * DILATION_W) / STRIDE_W;
          if (o >= RUN_W) continue;
#pragma unroll
          for (unsigned v = 0; v < VECTOR_WIDTH; ++v) sum[i][o][v] += pixel.lane[v] * weight[s][v];
        }
      }
    }
  }
  const Epilogue epilogue{b, Y};
#pragma unroll
  for (unsigned i = 0; i < RUN_H; ++i) {
#pragma unroll
    for (unsigned o = 0; o < RUN_W; ++o) {
      if ((OUT_H % RUN_H != 0 && out_y + i >= OUT_H) || (OUT_W % RUN_W != 0 && out_x + o >= OUT_W)) continue;
      Pack<VECTOR_WIDTH> out;
#pragma unroll
      for (unsigned v = 0; v < VECTOR_WIDTH; ++v) out.lane[v] = sum[i][o][v];
      epilogue.write<VECTOR_WIDTH>((image * OUT_H + out_y + i) * OUT_W + out_x + o, channel, out);
    }
  }
}
