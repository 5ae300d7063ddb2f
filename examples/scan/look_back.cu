// y[i] = x[0] + ... + x[i].  x, y: (n).
//
// One launch, x read once. A block publishes the sum of its tile, then looks back over the tiles before it: it adds their
// sums until it meets one that already knows the sum of all before it. Which tiles those are is a matter of timing, so
// the last digits may differ from run to run. Tiles are numbered in the order in which blocks begin: whoever waits,
// waits for a block that runs. The counter takes itself back to 0, and tiles of earlier launches are told by the launch's
// number, so that nothing has to be cleared.
//   block (BLOCK); grid (tiles)
//   shared memory, static: a tile, a sum for each warp, what lies before the tile, the tile's number and the launch's
//   workspace: 16 bytes, then for each tile its state, its sum, and the sum up to its end
// Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (NVIDIA, 2016).
#include "problem.cuh"

struct Counters {
  unsigned begun;    // tiles of this launch
  unsigned launch;   // number of this launch
};

// What blocks tell each other of their tiles.
struct Published {
  volatile unsigned* state;   // of launch number l: 2 l + 1 with the sum known, 2 l + 2 with the sum up to the end
  REAL *sum, *up_to_end;
};

__device__ __forceinline__ Published published_in(unsigned char* workspace) {
  unsigned char* const states = workspace + 16;
  REAL* const sums = reinterpret_cast<REAL*>(states + (TILES * sizeof(unsigned) + 15) / 16 * 16);
  return {reinterpret_cast<volatile unsigned*>(states), sums, sums + TILES};
}

// The number of the tile that this block takes, and of the launch.
__device__ __forceinline__ unsigned take_tile(Counters* counters, unsigned& launch) {
  launch = *const_cast<volatile unsigned*>(&counters->launch);
  __threadfence();   // before the last tile is taken, all have read the launch's number
  const unsigned tile = atomicInc(&counters->begun, TILES - 1);
  if (tile == TILES - 1) counters->launch = launch + 1;
  return tile;
}

// A number first, then the state that says that it is there.
__device__ __forceinline__ void publish(const Published& all, REAL* numbers, unsigned tile, REAL value, unsigned state) {
  numbers[tile] = value;
  __threadfence();
  all.state[tile] = state;
}

// The sum of all tiles before this one, the same in every lane; by one whole warp, 32 tiles at a time.
__device__ __forceinline__ REAL sum_before(const Published& all, unsigned tile, unsigned launch) {
  REAL sum = 0;
  for (int nearest = static_cast<int>(tile) - 1; nearest >= 0; nearest -= 32) {
    const int mine = nearest - static_cast<int>(threadIdx.x % 32);
    unsigned state;
    do {
      state = mine >= 0 ? all.state[mine] - 2 * launch : 2;
    } while (__any_sync(0xffffffffu, state != 1 && state != 2));
    __threadfence();
    const unsigned ends = __ballot_sync(0xffffffffu, state == 2);
    const unsigned last = ends ? __ffs(static_cast<int>(ends)) - 1 : 31;   // the nearest that knows all before it
    REAL value = 0;
    if (mine >= 0 && threadIdx.x % 32 <= last) value = __ldcg((state == 2 ? all.up_to_end : all.sum) + mine);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    sum += value;
    if (ends) break;
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scan(const REAL* __restrict__ x, REAL* __restrict__ y, unsigned char* workspace) {
  __shared__ REAL elements[TILE_IN_SHARED];
  __shared__ REAL of_warps[WARPS];
  __shared__ REAL before_tile;
  __shared__ unsigned numbers[2];
  const Published all = published_in(workspace);
  if (threadIdx.x == 0) numbers[0] = take_tile(reinterpret_cast<Counters*>(workspace), numbers[1]);
  __syncthreads();
  const unsigned tile = numbers[0], launch = numbers[1], first = tile * TILE;
  load_tile(x, first, elements);
  __syncthreads();
  REAL total;
  const REAL before = block_scan_before(own_sum(elements), of_warps, total);
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0 && tile > 0) publish(all, all.sum, tile, total, 2 * launch + 1);
    const REAL sum = sum_before(all, tile, launch);
    if (threadIdx.x == 0) {
      publish(all, all.up_to_end, tile, sum + total, 2 * launch + 2);
      before_tile = sum;
    }
  }
  __syncthreads();
  finish_tile(y, first, elements, before_tile + before);
}
