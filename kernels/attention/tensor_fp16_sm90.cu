// O = softmax(Q Kᵀ scale + mask) V for each head of a batch (problem.cuh has the layouts).
//
// FP32 accuracy on the FP16 tensor cores of compute capability 9.0 (PTX for sm_90a), in two launches that share a workspace:
//   attention_pack  writes each number of K and V, scaled, as two FP16 parts to where copies and tensor cores read them in order;
//                   keys have a scale each, V has one for each column of a tile
//   attention       a warpgroup has 64 queries, in two parts too. For each tile of keys it makes the scores by three products
//                   of parts, their shares of the softmax in FP32, splits those, and multiplies them by V, again by three products
// Each tile's part of O is made by itself and added in FP32, because tensor cores cut off what they add. While the products of
// one tile with V run, the scores of the next are made and become shares; the other warpgroup does the same at another time.
// Where two parts do not hold a tile (infinities, NaN, spans too wide), its products are made by FMAs instead (exact.cuh).
//   tile  64 * MULTIPLIERS queries by TILE_KEYS keys; block: MULTIPLIERS warpgroups that multiply, a warp that loads
//   grid  (BLOCKS, or as many as there are tiles of queries): a block has such tiles by turns
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for the parts; Shah, Bikshandi, Zhang, Thakkar, Ramani and Dao, "FlashAttention-3" (2024), for the roles of
// warpgroups.
#include "multiply.cuh"
#include "pack.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/named_barrier.cuh"

#define PARAMETERS \
  float scale, const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V, \
      const float* __restrict__ M, float* __restrict__ O, unsigned char* __restrict__ workspace

extern "C" __global__ void __launch_bounds__(PACK_THREADS) attention_pack(PARAMETERS) {
  launch_dependents();
  wait_for_launch_before();
  pack(K, V, workspace);
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

// Tiles as they come, in the order in which `multiply` needs them.
struct TilesInTurn {
  Ring& ring;
  __device__ __forceinline__ Arrived keys(unsigned) { return Arrived(ring); }
  __device__ __forceinline__ Arrived values(unsigned) { return Arrived(ring); }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention(PARAMETERS) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  __shared__ float scales[TILE_QUERIES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, full = shared_address(barriers);
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(full + 8 * (STAGES + stage), 4 * MULTIPLIERS);
    }
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
      multiply(TilesInTurn{ring}, rows, arrays, queries, tiles, item.loaded, O);
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
