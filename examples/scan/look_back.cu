// y[i] = x[0] + ... + x[i].  x, y: (n).
//
// One launch, x read once. A block publishes the sum of its tile, then looks back over the tiles before it: it adds their
// sums until it meets one that already knows the sum of all before it. Which tiles those are is a matter of timing, so
// the last digits may differ from run to run. Whoever waits must wait for a block that runs: with TICKETS tiles are
// numbered in the order in which blocks begin, by a counter that takes itself back to 0; without, by their block, which
// CUDA does not promise to begin in order, though GPUs do, and a counter's time is saved. Tiles of earlier launches are
// told by the launch's number, so that nothing has to be cleared.
//   block (BLOCK); grid (tiles)
//   shared memory, static: a sum for each warp, what lies before the tile, the tile's number and the launch's
//   workspace: 16 bytes, then what each tile has published
// Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (NVIDIA, 2016).
#include "problem.cuh"
#ifndef AHEAD
#define AHEAD 1     // tiles that a lane asks for at a time when it looks back
#endif
#ifndef TICKETS
#define TICKETS 1   // whether tiles are numbered in the order in which blocks begin
#endif

struct Counters {
  unsigned begun;    // tiles of this launch
  unsigned launch;   // number of this launch
};

// What a tile has published: each word has four bytes of the number, and above them the state: of launch number l 2 l + 1
// with the sum of the tile, 2 l + 2 with the sum up to its end. A word is written and read as one, so none needs a fence;
// where there are two, whoever meets two states reads again.
constexpr unsigned WORDS = REAL_BYTES / 4;
struct Published {
  unsigned long long words[WORDS];

  __device__ __forceinline__ unsigned state() const { return static_cast<unsigned>(words[0] >> 32); }
  __device__ __forceinline__ bool is_whole() const { return WORDS == 1 || state() == words[WORDS - 1] >> 32; }
  __device__ __forceinline__ REAL value() const {
    union {
      unsigned parts[WORDS];
      REAL whole;
    } bits;
#pragma unroll
    for (unsigned i = 0; i < WORDS; ++i) bits.parts[i] = static_cast<unsigned>(words[i]);
    return bits.whole;
  }
};
typedef volatile Published Shared;

__device__ __forceinline__ void publish(Shared* tile, REAL value, unsigned state) {
  union {
    REAL whole;
    unsigned parts[WORDS];
  } bits = {value};
#pragma unroll
  for (unsigned i = 0; i < WORDS; ++i) tile->words[i] = static_cast<unsigned long long>(state) << 32 | bits.parts[i];
}

__device__ __forceinline__ Published published(Shared* tile) {
  Published read;
#pragma unroll
  for (unsigned i = 0; i < WORDS; ++i) read.words[i] = tile->words[i];
  return read;
}

// The number of the tile that this block takes, and of the launch.
__device__ __forceinline__ unsigned take_tile(Counters* counters, unsigned& launch) {
  launch = *const_cast<volatile unsigned*>(&counters->launch);
  if (!TICKETS) return blockIdx.x;
  __threadfence();   // before the last tile is taken, all have read the launch's number
  return atomicInc(&counters->begun, TILES - 1);
}

// The sum of all tiles before this one, the same in every lane; by one whole warp, 32 AHEAD tiles at a time.
__device__ __forceinline__ REAL sum_before(Shared* tiles, unsigned tile, unsigned launch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  REAL sum = 0;
  bool is_known = false;   // by a tile that all before it are counted in
  for (int nearest = static_cast<int>(tile) - 1; nearest >= 0 && !is_known; nearest -= 32 * AHEAD) {
    Published seen[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int mine = nearest - 32 * k - lane;
      if (mine >= 0) seen[k] = published(tiles + mine);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (is_known) continue;
      const int mine = nearest - 32 * k - lane;
      unsigned ends, nearer, state;
      while (true) {
        state = mine < 0 ? 2 : seen[k].is_whole() ? seen[k].state() - 2 * launch : 0;
        ends = __ballot_sync(0xffffffffu, state == 2);
        nearer = ends ^ (ends - 1);   // up to the nearest that knows all before it; with none, all
        const unsigned waiting = __ballot_sync(0xffffffffu, state != 1 && state != 2);
        if ((waiting & nearer) == 0) break;
        if (mine >= 0) seen[k] = published(tiles + mine);
      }
      if (mine >= 0 && nearer >> lane & 1) sum += seen[k].value();
      is_known = ends != 0;
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  return sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scan(const REAL* __restrict__ x, REAL* __restrict__ y, unsigned char* workspace) {
  __shared__ REAL of_warps[WARPS];
  __shared__ REAL before_tile;
  __shared__ unsigned numbers[2];
  Counters* const counters = reinterpret_cast<Counters*>(workspace);
  Shared* const tiles = reinterpret_cast<Shared*>(workspace + 16);
  if (threadIdx.x == 0) numbers[0] = take_tile(counters, numbers[1]);
  if (TICKETS) __syncthreads();
  const unsigned tile = TICKETS ? numbers[0] : blockIdx.x;
  Elements mine = load_tile(x, tile);
  REAL total;
  const REAL before = sum_of_warps_before(scan_of_warp(mine), of_warps, total);
  if (threadIdx.x < 32) {
    const unsigned launch = numbers[1];
    if (threadIdx.x == 0 && tile > 0) publish(tiles + tile, total, 2 * launch + 1);
    const REAL sum = sum_before(tiles, tile, launch);
    if (threadIdx.x == 0) {
      publish(tiles + tile, sum + total, 2 * launch + 2);
      before_tile = sum;
      if (tile == TILES - 1) counters->launch = launch + 1;   // all others have published, so all have read it
    }
  }
  __syncthreads();
  store_tile(y, tile, mine, before_tile + before);
}
