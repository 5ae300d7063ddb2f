// a[i] = sum over j of m[j] d / (|d|^2 + softening)^(3/2), d = r[j] - r[i].  bodies: (n, 4), which are r and m; a: (n, 3).
//
// A thread holds BODIES bodies in registers, so that each r[j] that it reads is of use that often. SLICES groups of
// BLOCK threads take turns with tiles of BLOCK bodies j and add up at the end, for more threads than there are bodies.
// STAGED 1 brings a tile into shared memory first; with 0 all threads of a warp read the same body through the cache.
//   block (BLOCK, SLICES); grid (n / (BLOCK * BODIES)), rounded up
//   shared memory, static: with STAGED a tile for each slice; with SLICES their sums
// Nyland, Harris, Prins, "Fast N-Body Simulation with CUDA" (GPU Gems 3, chapter 31), also for counting 20 operations.
#include "common/real.cuh"
#ifndef SHAPE_N
#define SHAPE_N 32768   // bodies
#endif
#ifndef BLOCK
#define BLOCK 128       // threads of a slice
#endif
#ifndef SLICES
#define SLICES 2        // groups of threads that share the bodies j
#endif
#ifndef BODIES
#define BODIES 2        // bodies i of a thread
#endif
#ifndef STAGED
#define STAGED 1
#endif
#ifndef UNROLL
#define UNROLL 8        // bodies j of one pass of the inner loop
#endif

constexpr unsigned N = SHAPE_N, TOGETHER = UNROLL;

struct alignas(16) Body {
  REAL x, y, z, mass;
};

struct Vector {
  REAL x, y, z;
};

// Adds what body j does to one at `at`.
__device__ __forceinline__ void attract(Vector& sum, const Vector& at, const Body& j, REAL softening) {
  const REAL x = j.x - at.x, y = j.y - at.y, z = j.z - at.z;
  const REAL inverse = rsqrt(x * x + (y * y + (z * z + softening)));
  const REAL pull = j.mass * (inverse * inverse * inverse);
  sum.x += x * pull, sum.y += y * pull, sum.z += z * pull;
}

extern "C" __global__ void __launch_bounds__(BLOCK * SLICES)
nbody(const Body* __restrict__ bodies, REAL* __restrict__ a, REAL softening) {
#if STAGED
  __shared__ Body staged[SLICES][BLOCK];
#endif
  const unsigned first = blockIdx.x * BLOCK * BODIES + threadIdx.x;
  Vector at[BODIES], sums[BODIES];
#pragma unroll
  for (unsigned k = 0; k < BODIES; ++k) {
    const unsigned i = first + k * BLOCK;
    const Body body = bodies[i < N ? i : N - 1];
    at[k] = {body.x, body.y, body.z};
    sums[k] = {0, 0, 0};
  }
  // The slices make equally many passes, as they wait for one another.
  for (unsigned tiles = 0; tiles < N; tiles += BLOCK * SLICES) {
    const unsigned tile = tiles + threadIdx.y * BLOCK;
#if STAGED
    // A body without mass attracts nothing, so that a tile past the end needs no test.
    staged[threadIdx.y][threadIdx.x] = tile + threadIdx.x < N ? bodies[tile + threadIdx.x] : Body{0, 0, 0, 0};
    __syncthreads();
    const Body* const others = staged[threadIdx.y];
    constexpr unsigned count = BLOCK;
#else
    const Body* const others = bodies + tile;
    const unsigned count = tile >= N ? 0 : (N - tile < BLOCK ? N - tile : BLOCK);
#endif
#pragma unroll TOGETHER
    for (unsigned j = 0; j < count; ++j) {
      const Body other = others[j];
#pragma unroll
      for (unsigned k = 0; k < BODIES; ++k) attract(sums[k], at[k], other, softening);
    }
#if STAGED
    __syncthreads();
#endif
  }
#if SLICES > 1
  __shared__ Vector of_slices[SLICES][BLOCK];
#endif
#pragma unroll
  for (unsigned k = 0; k < BODIES; ++k) {
#if SLICES > 1
    of_slices[threadIdx.y][threadIdx.x] = sums[k];
    __syncthreads();
    if (threadIdx.y == 0) {
#pragma unroll
      for (unsigned slice = 1; slice < SLICES; ++slice) {
        const Vector other = of_slices[slice][threadIdx.x];
        sums[k].x += other.x, sums[k].y += other.y, sums[k].z += other.z;
      }
    }
    __syncthreads();
#endif
    const unsigned i = first + k * BLOCK;
    if (threadIdx.y == 0 && i < N) a[3 * i] = sums[k].x, a[3 * i + 1] = sums[k].y, a[3 * i + 2] = sums[k].z;
  }
}
