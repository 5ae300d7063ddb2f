// C = alpha op(A) op(B) + beta C in bfloat16 or float16 on the tensor cores of compute capability 9.0 (PTX for sm_90a),
// sums in float32, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts). For rows that
// begin anywhere, in two launches that share a workspace:
//   gemm_pack  writes both operands to where copies and tensor cores read them in order (tma/pack.cuh)
//   gemm       multiplies as tensor_half_sm90.cu does, and stores rows by 16 bytes, their ends element by element
//   tile  TILE_M x TILE_N;  block (384, or 256): warpgroups that multiply, one that loads;  grid (BLOCKS or less)
#include "half_epilogue.cuh"
#include "tma/packed_product.cuh"

#define PARAMETERS \
  float alpha, const Half* __restrict__ A, const Half* __restrict__ B, float beta, Stored* C, \
      unsigned char* __restrict__ workspace

extern "C" __global__ void __launch_bounds__(PACK_THREADS) gemm_pack(PARAMETERS) { pack(A, B, workspace); }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1) gemm(PARAMETERS) {
  const auto epilogue_of = [=](unsigned matrix) { return Epilogue{alpha, beta, C + matrix * STRIDE_C}; };
  multiply_packed(epilogue_of, C, workspace);
}
