// y[i] = sum over k from row_start[i] to row_start[i + 1] of values[k] * x[columns[k]]: a matrix in CSR times a vector.
// row_start: (m + 1), columns, values: (nnz), x: (n), y: (m).
//
// A block has BLOCK / LANES neighbouring rows, whose elements lie side by side: it reads them in whole lines, BLOCK * ITEMS
// at a time, whatever the rows' lengths, and leaves the products in shared memory. Then LANES threads add up each row.
// Elements come in packs of four; those before the block's first element are the neighbour's, and nobody adds them up.
// x is read in no order. With WINDOW, the WINDOW elements around the diagonal lie in shared memory; columns outside are
// read from x, so that any matrix is right, and one with a band may be faster (docs/gallery.md has times).
//   block (BLOCK); grid (m * LANES / BLOCK), rounded up
//   shared memory, static: BLOCK * ITEMS products, and WINDOW elements of x
// Greathouse and Daga, "Efficient Sparse Matrix-Vector Multiplication on GPUs Using the CSR Storage Format" (SC 2014).
#include "problem.cuh"
#ifndef LANES
#define LANES 1              // threads that add up a row
#endif
#ifndef ITEMS
#define ITEMS 8              // products of a thread at a time
#endif
#ifndef WINDOW
#define WINDOW 2048          // elements of x in shared memory
#endif

constexpr unsigned ROWS = BLOCK / LANES, CHUNK = BLOCK * ITEMS, PACKS = ITEMS / 4;
struct alignas(16) Columns {
  unsigned lane[4];
};

extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(const int* __restrict__ row_start, const int* __restrict__ columns, const REAL* __restrict__ values,
     const REAL* __restrict__ x, REAL* __restrict__ y) {
  __shared__ Pack<4> products[CHUNK / 4];
  __shared__ REAL window[WINDOW ? WINDOW : 1];
  const unsigned first_row = blockIdx.x * ROWS, end_row = first_row + ROWS < SHAPE_M ? first_row + ROWS : SHAPE_M;
  const unsigned row = first_row + threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const unsigned from = row < SHAPE_M ? static_cast<unsigned>(row_start[row]) : 0;
  const unsigned to = row < SHAPE_M ? static_cast<unsigned>(row_start[row + 1]) : 0;
  const unsigned begin = static_cast<unsigned>(row_start[first_row]) / 4 * 4;
  const unsigned end = static_cast<unsigned>(row_start[end_row]);

  const auto middle = static_cast<unsigned>((first_row + end_row) / 2 * static_cast<unsigned long long>(SHAPE_N) / SHAPE_M);
  const unsigned window_at = middle > WINDOW / 2 ? middle - WINDOW / 2 : 0;
  for (unsigned i = threadIdx.x; i < WINDOW; i += BLOCK) window[i] = window_at + i < SHAPE_N ? x[window_at + i] : REAL(0);

  REAL sum = 0;
  for (unsigned chunk = begin; chunk < end; chunk += CHUNK) {
    Columns column[PACKS];
    Pack<4> value[PACKS];
#pragma unroll
    for (unsigned p = 0; p < PACKS; ++p) {
      const unsigned k = chunk + (p * BLOCK + threadIdx.x) * 4;
      if (k + 4 <= SHAPE_NNZ && k < end) {
        column[p] = *reinterpret_cast<const Columns*>(columns + k);
        value[p] = load_pack<4>(values + k);
      } else {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          column[p].lane[i] = k + i < end ? static_cast<unsigned>(columns[k + i]) : 0;
          value[p].lane[i] = k + i < end ? values[k + i] : REAL(0);
        }
      }
    }
    __syncthreads();   // the window is there; nobody adds up the chunk before
#pragma unroll
    for (unsigned p = 0; p < PACKS; ++p) {
      Pack<4> product;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned at = column[p].lane[i] - window_at;
        product.lane[i] = value[p].lane[i] * (at < WINDOW ? window[at] : __ldg(x + column[p].lane[i]));
      }
      products[p * BLOCK + threadIdx.x] = product;
    }
    __syncthreads();
    const REAL* const here = products[0].lane;
    const unsigned last = to < chunk + CHUNK ? to : chunk + CHUNK;
    for (unsigned k = (from > chunk ? from : chunk) + lane; k < last; k += LANES) sum += here[k - chunk];
  }
  sum = sum_of_lanes<LANES>(sum);
  if (row < SHAPE_M && lane == 0) y[row] = sum;
}
