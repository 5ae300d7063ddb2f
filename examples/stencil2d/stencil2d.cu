// Four steps of u[i, j] = CENTRE u[i, j] + SIDE (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]), from x to y.
// x, y: (h, w), row-major; outside there are zeros.
//
// A launch takes STEPS of the four steps: a block brings its tile and a rim of STEPS elements into shared memory and goes
// from one copy of the tile to the other, each time a rim of one smaller. What neighbours share of the rims is computed
// twice, but memory is read and written once for STEPS steps: temporal blocking.
//   block (BLOCK_X, BLOCK_Y); grid (w / (BLOCK_X * COLUMNS), h / (BLOCK_Y * ROWS)), rounded up
//   shared memory, dynamic: two copies of the tile with its rim
//   workspace with STEPS 2: one array of (h, w); with STEPS 1: two
#include "common/real.cuh"
#ifndef SHAPE_H
#define SHAPE_H 8192   // rows
#define SHAPE_W 8192   // columns
#endif
#ifndef STEPS
#define STEPS 4        // steps of one launch: 1, 2 or 4
#endif
#ifndef BLOCK_X
#define BLOCK_X 32
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8
#endif
#ifndef ROWS
#define ROWS 4         // rows of a tile for each thread
#endif
#ifndef COLUMNS
#define COLUMNS 1      // columns of a tile for each thread
#endif

constexpr int H = SHAPE_H, W = SHAPE_W, TILE_H = BLOCK_Y * ROWS, TILE_W = BLOCK_X * COLUMNS;
constexpr int RIM_H = TILE_H + 2 * STEPS, RIM_W = TILE_W + 2 * STEPS;   // the tile with its rim
constexpr REAL CENTRE = 0.5, SIDE = 0.125;

// One step on what lies `margin` or more inside the tile with its rim: `put(i, j, value)` for each element.
template <class Put>
__device__ __forceinline__ void step(const REAL* from, int margin, int top, int left, Put put) {
  for (int i = margin + threadIdx.y; i < RIM_H - margin; i += BLOCK_Y) {
    for (int j = margin + threadIdx.x; j < RIM_W - margin; j += BLOCK_X) {
      const REAL* const at = from + i * RIM_W + j;
      const bool is_inside = top + i >= 0 && top + i < H && left + j >= 0 && left + j < W;
      const REAL sides = (at[-RIM_W] + at[RIM_W]) + (at[-1] + at[1]);
      put(i, j, is_inside ? CENTRE * at[0] + SIDE * sides : REAL(0));
    }
  }
}

// STEPS steps of the block's tile.
__device__ __forceinline__ void advance(const REAL* __restrict__ from, REAL* __restrict__ to) {
  extern __shared__ __align__(16) REAL copies[];
  REAL *now = copies, *next = copies + RIM_H * RIM_W;
  const int top = static_cast<int>(blockIdx.y) * TILE_H - STEPS, left = static_cast<int>(blockIdx.x) * TILE_W - STEPS;
  for (int i = threadIdx.y; i < RIM_H; i += BLOCK_Y) {
    for (int j = threadIdx.x; j < RIM_W; j += BLOCK_X) {
      const bool is_inside = top + i >= 0 && top + i < H && left + j >= 0 && left + j < W;
      now[i * RIM_W + j] = is_inside ? from[static_cast<size_t>(top + i) * W + left + j] : REAL(0);
    }
  }
  __syncthreads();
#pragma unroll
  for (int margin = 1; margin < STEPS; ++margin) {
    step(now, margin, top, left, [next](int i, int j, REAL value) { next[i * RIM_W + j] = value; });
    __syncthreads();
    REAL* const done = now;
    now = next, next = done;
  }
  step(now, STEPS, top, left, [to, top, left](int i, int j, REAL value) {
    if (top + i < H && left + j < W) to[static_cast<size_t>(top + i) * W + left + j] = value;
  });
}

#define LAUNCH extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
#if STEPS == 4
LAUNCH stencil2d(const REAL* __restrict__ x, REAL* __restrict__ y) { advance(x, y); }
#else
// The arrays between the launches, in the workspace.
__device__ __forceinline__ REAL* between(unsigned char* workspace, unsigned number) {
  return reinterpret_cast<REAL*>(workspace) + static_cast<size_t>(number) * H * W;
}

LAUNCH stencil2d_first(const REAL* __restrict__ x, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  advance(x, between(workspace, 0));
}
LAUNCH stencil2d(const REAL* __restrict__, REAL* __restrict__ y, unsigned char* __restrict__ workspace) {
  advance(between(workspace, 0), y);
}
#if STEPS == 1
LAUNCH stencil2d_second(const REAL* __restrict__, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  advance(between(workspace, 0), between(workspace, 1));
}
LAUNCH stencil2d_third(const REAL* __restrict__, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  advance(between(workspace, 1), between(workspace, 0));
}
#endif
#endif
