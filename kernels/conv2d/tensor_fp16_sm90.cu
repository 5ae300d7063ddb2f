// Y = act(conv(X, W) + b) in float32 on the FP16 tensor cores of compute capability 9.0 (PTX for sm_90a), in three launches
// that share a workspace; problem.cuh has the layouts.
//
//   conv2d_survey  reads X and W: the scale of all pixels and of each filter, a power of two; whether FP16 suffices
//   conv2d_pack    writes every number, scaled, as two FP16 parts; pixels as lines of the padded images (conv/lines.cuh)
//   conv2d         multiplies: low by high, high by low, high by high parts; sums go to FP32 registers every PROMOTE_K
// Where outputs lie as the padded images' lines do, the patches of neighbouring outputs are neighbouring lines for every
// tap, so that a tile of op(A) is one piece of memory, and its taps of a row are the same piece some lines further on.
// What is computed for lines that are no outputs is dropped. Two FP16 parts hold 22 bits of a number that is not far below
// the largest. Where numbers span so much that the bound on the error might not hold (conv/lines.cuh), all become three
// BF16 parts and six products, at half the speed, without the host's help.
//   tile  128 lines x TILE_N filters;  block (384): two warpgroups that multiply, one warp that loads;  grid (BLOCKS or less)
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for FP16 parts; Zhang, Franchetti and Low, "High Performance Zero-Memory Overhead Direct
// Convolutions" (2018), for products over shifted lines in place of patches.
#include "problem.cuh"

#include "conv/multiply_lines.cuh"
#include "conv/pack_lines.cuh"
#include "conv/survey_lines.cuh"
#include "epilogue.cuh"

#define PARAMETERS \
  const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y, \
      unsigned char* __restrict__ workspace

extern "C" __global__ void __launch_bounds__(lines::SURVEY_THREADS) conv2d_survey(PARAMETERS) {
  lines::survey(X, W, workspace);
}

extern "C" __global__ void __launch_bounds__(lines::PACK_THREADS) conv2d_pack(PARAMETERS) {
  lines::pack(X, W, workspace);
}

extern "C" __global__ void __launch_bounds__(lines::MULTIPLY_THREADS, 1) conv2d(PARAMETERS) {
  lines::multiply(Epilogue{b, Y}, workspace);
}
