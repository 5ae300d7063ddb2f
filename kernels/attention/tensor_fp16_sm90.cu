// O = softmax(Q Kᵀ scale + mask) V for each head of a batch (problem.cuh has the layouts).
//
// FP32 accuracy on the FP16 tensor cores of compute capability 9.0 (PTX for sm_90a), in two launches that share a workspace:
//   attention_pack  writes each number of K and V, scaled, as two FP16 parts to where copies and tensor cores read them in order;
//                   keys have a scale each, V has one for each column of a tile
//   attention       a warpgroup has 64 queries, in two parts too. For each tile of keys it makes the scores by three products
//                   of parts, their shares of the softmax in FP32, splits those, and multiplies them by V, again by three products
// Each tile's part of O is made by itself and added in FP32, because tensor cores cut off what they add. While the products of
// one tile with V run, the scores of the next are made and become shares; the warpgroups do so by turns.
// Where two parts do not hold a tile (infinities, NaN, spans too wide), its products are made by FMAs instead (exact.cuh).
//   tile  64 * MULTIPLIERS queries by TILE_KEYS keys; block: MULTIPLIERS warpgroups that multiply, a warp that loads
//   grid  (BLOCKS, or as many as there are tiles of queries): a block has such tiles by turns
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for the parts; Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao, "FlashAttention-3" (2024), for the roles of
// warpgroups.
#include "pack.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/wgmma_f16.cuh"
#include "softmax.cuh"

#define PARAMETERS \
  float scale, const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V, \
      const float* __restrict__ M, float* __restrict__ O, unsigned char* __restrict__ workspace

extern "C" __global__ void __launch_bounds__(PACK_THREADS) attention_pack(PARAMETERS) {
  launch_dependents();
  wait_for_launch_before();
  pack(K, V, workspace);
}

// Descriptors by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes, swizzled over 128: eight lines lie `lines` apart; across
// k the next 64 columns lie `columns` apart.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned lines, unsigned columns) {
  return (address & 0x3ffff) / 16 | static_cast<unsigned long long>(columns / 16) << 16 |
         static_cast<unsigned long long>(lines / 16) << 32 | 1ull << 62;
}

// Starts the products of queries and the keys of a tile: small ones first.
__device__ __forceinline__ void start_scores(float (&score)[TILE_KEYS / 2], unsigned queries, unsigned stage) {
  if constexpr (PANELS > 1) fence_operand(queries);   // so that no registers hold what follows from it all the time
  const unsigned long long q = descriptor(queries, 1024, 16), k = descriptor(stage, GROUP_BYTES, 16);
  warpgroup_arrive();
#pragma unroll
  for (unsigned product = 0; product < 3; ++product) {   // low by high, high by low, high by high parts
#pragma unroll
    for (unsigned step = 0; step < CHUNKS / 2; ++step) {
      const unsigned in_panel = step % 4 * 2, panel = step / 4;
      const unsigned at_q = (panel * PANEL_Q_BYTES + (product == 0 ? PART_Q_BYTES : 0)) / 16 + in_panel;
      const unsigned at_k = (panel * 1024 + (product == 1 ? PART_BYTES : 0)) / 16 + in_panel;
      wgmma_k16_shared<TILE_KEYS>(score, q + at_q, k + at_k, product + step);
    }
  }
  warpgroup_commit_batch();
}

// Starts the products of shares and the values of a tile.
__device__ __forceinline__ void start_values(
    float (&part)[DEPTH / 2], const unsigned (&high)[TILE_KEYS / 4], const unsigned (&low)[TILE_KEYS / 4], unsigned stage) {
  const unsigned long long v = descriptor(stage, GROUP_BYTES, 1024);
  warpgroup_arrive();
#pragma unroll
  for (unsigned product = 0; product < 3; ++product) {
#pragma unroll
    for (unsigned step = 0; step < TILE_KEYS / 16; ++step) {
      const unsigned at = (step * 2 * GROUP_BYTES + (product == 1 ? PART_BYTES : 0)) / 16;
      wgmma_k16_registers<DEPTH>(part, (product == 0 ? low : high) + 4 * step, v + at, product + step);
    }
  }
  warpgroup_commit_batch();
}

// A warpgroup's part of its queries' result: sums over the tiles before, and the products that run.
struct Output {
  float sum[DEPTH / 2] = {}, part[DEPTH / 2] = {};

  // The sums so far become less by `since`, and those of the tile are added, its scales taken away.
  __device__ __forceinline__ void add(const float (&since)[2], unsigned factors) {
#pragma unroll
    for (unsigned i = 0; i < DEPTH / 8; ++i) {
      float first, second;
      ld_shared_v2(first, second, factors + (i * 8 + threadIdx.x % 4 * 2) * 4);
      sum[4 * i] = fmaf(part[4 * i], first, sum[4 * i] * since[0]);
      sum[4 * i + 1] = fmaf(part[4 * i + 1], second, sum[4 * i + 1] * since[0]);
      sum[4 * i + 2] = fmaf(part[4 * i + 2], first, sum[4 * i + 2] * since[1]);
      sum[4 * i + 3] = fmaf(part[4 * i + 3], second, sum[4 * i + 3] * since[1]);
    }
  }

  __device__ __forceinline__ void store(float* __restrict__ O, const Rows& rows, const Softmax& softmax) const {
#pragma unroll
    for (unsigned row = 0; row < 2; ++row) {
      const float inverse = softmax.inverse(row);
      if (rows.query(row) >= QUERIES) continue;
      float* const target = O + ROW_O * rows.query(row) + threadIdx.x % 4 * 2;
#pragma unroll
      for (unsigned i = 0; i < DEPTH / 8; ++i) {
        *reinterpret_cast<float2*>(target + 8 * i) =
            make_float2(sum[4 * i + 2 * row] * inverse, sum[4 * i + 2 * row + 1] * inverse);
      }
    }
  }
};

// A head, and the arrays, as a warpgroup reads them beside its tiles: rarely, so that no register holds where the head begins.
struct Arrays {
  const float *Q, *K, *V, *M;
  Head head;
};

// Scores that have been made become shares; K's tile is given back. Returns whether V does not fit.
__device__ __forceinline__ bool make_shares(
    float (&score)[TILE_KEYS / 2], Softmax& softmax, float (&since)[2], const Rows& rows, const Arrays& arrays,
    const Arrived& keys, unsigned tile) {
  const unsigned factors = keys.stage + TILE_BYTES;
  float key_word, value_word;
  ld_shared_v2(key_word, value_word, factors + TILE_KEYS * 4);
  unscale(score, factors);
  keys.release();
  if (rows.are_unfit || __float_as_uint(key_word) != 0) exact_scores(score, rows, arrays.Q + arrays.head.q(), arrays.K + arrays.head.k(), tile * TILE_KEYS);
  mask_scores(score, rows, HAS_MASK ? arrays.M + arrays.head.m() : arrays.M, tile * TILE_KEYS);
  softmax.take(score, rows, since);
  return __float_as_uint(value_word) != 0;
}

// Shares are split; where V does not fit, what they add to the result is added at once, and `since` has been counted then.
__device__ __forceinline__ void split_shares(
    const float (&share)[TILE_KEYS / 2], unsigned (&high)[TILE_KEYS / 4], unsigned (&low)[TILE_KEYS / 4], Output& output,
    float (&since)[2], bool is_unfit, const Arrays& arrays, unsigned tile) {
#pragma unroll
  for (unsigned i = 0; i < TILE_KEYS / 4; ++i) split_pair(share[2 * i], share[2 * i + 1], high[i], low[i]);
  if (is_unfit) {
#pragma unroll
    for (unsigned i = 0; i < DEPTH / 2; ++i) output.sum[i] *= since[i / 2 % 2];
    since[0] = since[1] = 1.0f;
    add_exact_values(output.sum, share, arrays.V + arrays.head.v(), tile * TILE_KEYS);
  }
}

// Warpgroups start products by turns, so that the shares of one are made beside the products of another. By themselves they would
// all make shares at the same time, and tensor cores would wait. Beside a mask the registers do not suffice for it.
struct Turns {
  static constexpr bool ARE_TAKEN = !HAS_MASK;
  unsigned own, next, parity;   // barriers of this warpgroup and of the one behind it

  __device__ __forceinline__ Turns(unsigned barriers, unsigned warpgroup)
      : own(barriers + 8 * warpgroup), next(barriers + 8 * ((warpgroup + 1) % MULTIPLIERS)), parity(warpgroup == 0) {}
  __device__ __forceinline__ void take() {
    if constexpr (!ARE_TAKEN) return;
    mbarrier_wait(own, parity);
    parity ^= 1;
  }
  __device__ __forceinline__ void give() const {
    if constexpr (ARE_TAKEN) mbarrier_arrive_warp(next);
  }
  __device__ __forceinline__ void pass() {
    take();
    give();
  }
};

// By a warpgroup that multiplies: its part of an item. Of the item's `loaded` tiles it needs `tiles`.
__device__ __forceinline__ void multiply(
    Ring& ring, Turns& turns, const Rows& rows, const Arrays& arrays, unsigned queries, unsigned tiles, unsigned loaded, float* O) {
  Output output;
  Softmax softmax;
  float score[TILE_KEYS / 2] = {}, since[2];
  unsigned high[TILE_KEYS / 4], low[TILE_KEYS / 4];
  {
    const Arrived keys(ring);
    start_scores(score, queries, keys.stage);
    warpgroup_wait_but<0>();
    fence_sums(score);
    const bool is_unfit = make_shares(score, softmax, since, rows, arrays, keys, 0);
    split_shares(score, high, low, output, since, is_unfit, arrays, 0);
  }
#pragma unroll 1
  for (unsigned tile = 1; tile < tiles; ++tile) {
    const Arrived keys(ring);
    turns.take();
    start_scores(score, queries, keys.stage);
    const Arrived values(ring);
    start_values(output.part, high, low, values.stage);
    turns.give();
    warpgroup_wait_but<1>();
    fence_sums(score);
    float next[2];
    const bool is_unfit = make_shares(score, softmax, next, rows, arrays, keys, tile);
    warpgroup_wait_but<0>();
    fence_sums(output.part);
    output.add(since, values.stage + TILE_BYTES);
    values.release();
    since[0] = next[0], since[1] = next[1];
    split_shares(score, high, low, output, since, is_unfit, arrays, tile);
  }
  unsigned left = loaded - tiles;
  if (left > 0) {   // the next tile of K comes ahead of the last of V
    Arrived(ring).release();
    turns.pass();
  }
  const Arrived values(ring);
  start_values(output.part, high, low, values.stage);
  warpgroup_wait_but<0>();
  fence_sums(output.part);
  output.add(since, values.stage + TILE_BYTES);
  values.release();
  for (; left > 0; --left) {
    Arrived(ring).release();
    if (left == 1) break;
    turns.pass();
    Arrived(ring).release();
  }
  output.store(O + arrays.head.o(), rows, softmax);
}

// Tiles of keys that count for a query or one before it.
__device__ __forceinline__ unsigned tiles_until(unsigned query) {
  return IS_CAUSAL ? tw::min(query / TILE_KEYS + 1, TILES_K) : TILES_K;
}

// A tile of queries of a head, and the tiles of keys that any of them needs. Heads come by some, of these first the last
// queries, which have the most keys where the mask is causal.
struct Item {
  Head head;
  unsigned first, loaded;

  __device__ __forceinline__ static unsigned heads_of(unsigned turn) {
    constexpr unsigned TOGETHER = HEADS_TOGETHER;
    return tw::min(TOGETHER, BATCH * HEADS - turn * HEADS_TOGETHER);
  }
  __device__ __forceinline__ Item(unsigned turn, unsigned within)
      : head(turn * HEADS_TOGETHER + within % heads_of(turn)),
        first((TILES_Q - 1 - within / heads_of(turn)) * TILE_QUERIES),
        loaded(tiles_until(tw::min(first + TILE_QUERIES, QUERIES) - 1)) {}
};

// The items of a block: one a round, every other round from behind, so that who had the longest gets the shortest.
struct Schedule {
  static constexpr unsigned ITEMS = BATCH * HEADS * TILES_Q, TURN = HEADS_TOGETHER * TILES_Q;
  unsigned round = 0;

  __device__ __forceinline__ unsigned number() const {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  }
  __device__ __forceinline__ bool is_valid() const { return number() < ITEMS; }
  __device__ __forceinline__ Item item() const { return Item(number() / TURN, number() % TURN); }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention(PARAMETERS) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES + MULTIPLIERS];
  __shared__ float scales[TILE_QUERIES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, full = shared_address(barriers);
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(full + 8 * (STAGES + stage), 4 * MULTIPLIERS);
    }
    for (unsigned i = 0; i < MULTIPLIERS; ++i) mbarrier_init(full + 8 * (2 * STAGES + i), 4);
    fence_mbarrier_init();
  }
  __syncthreads();
  launch_dependents();
  wait_for_launch_before();
  Ring ring(start + MULTIPLIERS * Q_BYTES, full);
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup < MULTIPLIERS) {
    warpgroup_reg_alloc<MULTIPLIERS == 2 ? 240 : 160>();
    const unsigned queries = start + warpgroup * Q_BYTES;
    Turns turns(full + 16 * STAGES, warpgroup);
#pragma unroll 1
    for (Schedule schedule; schedule.is_valid(); ++schedule.round) {
      const Item item = schedule.item();
      const unsigned own = item.first + warpgroup * 64;
      const Arrays arrays{Q, K, V, M, item.head};
      named_barrier_sync<128>(1 + warpgroup);   // until then the item before may be read
      const Rows rows = pack_queries(Q + item.head.q(), scale, own, queries, scales + warpgroup * 64);
      fence_proxy_async();
      named_barrier_sync<128>(1 + warpgroup);
      const unsigned tiles = own < QUERIES ? tiles_until(tw::min(own + 63, QUERIES - 1)) : 1;
      multiply(ring, turns, rows, arrays, queries, tiles, item.loaded, O);
    }
  } else {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x / 32 == 4 * MULTIPLIERS) {
      ring.parity = 1;
      fence_proxy_async_global();
#pragma unroll 1
      for (Schedule schedule; schedule.is_valid(); ++schedule.round) {
        const Item item = schedule.item();
        load_tiles(workspace, ring, item.head.batch * KV_HEADS + item.head.kv_head, item.loaded);
      }
    }
  }
}
