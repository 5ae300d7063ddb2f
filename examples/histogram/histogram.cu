// counts[b] = how many of x are b.  x: (n) from 0 to bins - 1, counts: (bins).
//
// A launch ahead clears the counts. Then every thread counts VECTOR neighbours at a time, a grid's width apart:
//   COPIES 0: straight into the counts in memory, where threads with the same value wait for one another;
//   else into one of COPIES histograms in shared memory, which the block adds to the counts at its end. More copies meet
//   less often; a warp's threads take turns among them, since neighbours in x are often alike.
//   histogram_clear: block (BLOCK); grid (bins / BLOCK), rounded up
//   histogram:       block (BLOCK); grid (BLOCKS);  shared memory, dynamic: the copies
#ifndef SHAPE_N
#define SHAPE_N 67108864   // length of x
#define SHAPE_BINS 256
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef BLOCKS
#define BLOCKS 528
#endif
#ifndef VECTOR
#define VECTOR 4           // elements of one load
#endif
#ifndef COPIES
#define COPIES 4           // histograms of a block in shared memory
#endif

constexpr unsigned N = SHAPE_N, BINS = SHAPE_BINS, PACKS = N / VECTOR;
constexpr unsigned PITCH = BINS + 1;   // the same bin of the next copy lies in the next bank

struct alignas(VECTOR * 4) Values {
  unsigned value[VECTOR];
};

extern "C" __global__ void histogram_clear(const unsigned* __restrict__, unsigned* __restrict__ counts) {
  const unsigned bin = blockIdx.x * BLOCK + threadIdx.x;
  if (bin < BINS) counts[bin] = 0;
}

// Counts x into `target`, by all threads of the grid.
__device__ __forceinline__ void count(const unsigned* __restrict__ x, unsigned* target) {
  for (unsigned i = blockIdx.x * BLOCK + threadIdx.x; i < PACKS; i += BLOCKS * BLOCK) {
    const Values values = reinterpret_cast<const Values*>(x)[i];
#pragma unroll
    for (unsigned k = 0; k < VECTOR; ++k) atomicAdd(target + values.value[k], 1u);
  }
  if (N % VECTOR != 0 && blockIdx.x == 0 && threadIdx.x < N % VECTOR) {
    atomicAdd(target + x[PACKS * VECTOR + threadIdx.x], 1u);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
histogram(const unsigned* __restrict__ x, unsigned* __restrict__ counts) {
#if COPIES == 0
  count(x, counts);
#else
  extern __shared__ unsigned copies[];
  for (unsigned i = threadIdx.x; i < COPIES * PITCH; i += BLOCK) copies[i] = 0;
  __syncthreads();
  count(x, copies + threadIdx.x % COPIES * PITCH);
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < BINS; bin += BLOCK) {
    unsigned sum = 0;
#pragma unroll
    for (unsigned copy = 0; copy < COPIES; ++copy) sum += copies[copy * PITCH + bin];
    if (sum) atomicAdd(counts + bin, sum);
  }
#endif
}
