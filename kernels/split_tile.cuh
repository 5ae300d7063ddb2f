// A tile whose k is split over several blocks: their sums added up in a fixed order. First over the CLUSTER blocks of a
// cluster in distributed shared memory, each block a share of the tile; then, where there are several clusters (SPLIT),
// over what each of them left in the workspace, by the last to arrive of the blocks with that share (split.cuh). So many
// blocks do the reading, and only clusters leave anything in memory.
// Expects split.cuh, async_copy.cuh, THREADS, QUAD, WPT_M, WPT_N and CLUSTER, a divisor of `parts`.

constexpr unsigned ROW_QUADS = WPT_N / QUAD;            // a thread's quads (16 bytes of sums) in one of its rows
constexpr unsigned THREAD_QUADS = WPT_M * ROW_QUADS;

// Of the thread's sums the quad of that number, counted row by row.
__device__ __forceinline__ Pack<QUAD> quad_of(const REAL (&sum)[WPT_M][WPT_N], unsigned number) {
  Pack<QUAD> quad;
#pragma unroll
  for (unsigned lane = 0; lane < QUAD; ++lane) quad.lane[lane] = sum[number / ROW_QUADS][number % ROW_QUADS * QUAD + lane];
  return quad;
}

__device__ __forceinline__ void add_quad(Pack<QUAD>& total, const Pack<QUAD>& part) {
#pragma unroll
  for (unsigned lane = 0; lane < QUAD; ++lane) total.lane[lane] += part.lane[lane];
}

// Sixteen bytes that another block has written, past the L1 cache.
__device__ __forceinline__ Pack<QUAD> load_written(const REAL* source) {
  union {
    float4 bits;
    Pack<QUAD> pack;
  } loaded;
  loaded.bits = __ldcg(reinterpret_cast<const float4*>(source));
  return loaded.pack;
}

// Adds up the tiles of the `parts` blocks that work on tile number `tile` of `all_tiles`, this one being the `rank`-th,
// and calls `write(number, total)` once for each quad of the tile, in the thread that has it in `sum` and in one of the
// blocks. `buffer` is shared memory for a tile, which nobody reads any more. Clusters: at most SPLIT of them.
template <class Write>
__device__ __forceinline__ void add_split(
    const REAL (&sum)[WPT_M][WPT_N], REAL* buffer, unsigned char* start, unsigned tile, unsigned all_tiles, unsigned rank,
    unsigned parts, Write write) {
  constexpr unsigned SHARE_QUADS = tiles(THREAD_QUADS, CLUSTER);   // of a thread, in the share of one block
  constexpr unsigned STRIDE = THREADS * QUAD;   // from a thread's quad to its next, so that neighbours touch
  const unsigned in_cluster = rank % CLUSTER, cluster = rank / CLUSTER, group = tile * CLUSTER + in_cluster;
  REAL* const sums = SPLIT == 1 ? nullptr
      : partial_sums(start, static_cast<size_t>(all_tiles) * CLUSTER)
          + static_cast<size_t>(group) * (SPLIT * SHARE_QUADS * STRIDE) + threadIdx.x * QUAD;
  if constexpr (CLUSTER > 1) {
    REAL* const mine = buffer + threadIdx.x * QUAD;
#pragma unroll
    for (unsigned number = 0; number < THREAD_QUADS; ++number) store_pack<QUAD>(mine + number * STRIDE, quad_of(sum, number));
    synchronize_cluster();
    const unsigned from = shared_address(mine);
#pragma unroll 2
    for (unsigned i = 0; i < SHARE_QUADS; ++i) {
      const unsigned number = i * CLUSTER + in_cluster;
      if (THREAD_QUADS % CLUSTER != 0 && number >= THREAD_QUADS) break;
      Pack<QUAD> total = {};
#pragma unroll
      for (unsigned block = 0; block < CLUSTER; ++block) {
        add_quad(total, load_cluster(address_in(from + number * (STRIDE * REAL_BYTES), block)));
      }
      if (SPLIT == 1) write(number, total);
      else store_global<QUAD>(sums + (cluster * SHARE_QUADS + i) * STRIDE, total);
    }
    synchronize_cluster();   // a block's shared memory ends with it
  } else {
#pragma unroll
    for (unsigned number = 0; number < THREAD_QUADS; ++number) {
      store_global<QUAD>(sums + (cluster * SHARE_QUADS + number) * STRIDE, quad_of(sum, number));
    }
  }
  if constexpr (SPLIT > 1) {
    // No more than there can be: to unroll further took the compiler a tenth of its time. Not in the pragma itself, where
    // nvcc expands no macros.
    constexpr int PARTS_AT_ONCE = SPLIT < 16 ? SPLIT : 16;
    const unsigned clusters = parts / CLUSTER;
    if (!arrives_last(start, group, clusters)) return;
#pragma unroll 2
    for (unsigned i = 0; i < SHARE_QUADS; ++i) {
      const unsigned number = i * CLUSTER + in_cluster;
      if (THREAD_QUADS % CLUSTER != 0 && number >= THREAD_QUADS) break;
      Pack<QUAD> total = {};
#pragma unroll PARTS_AT_ONCE
      for (unsigned part = 0; part < clusters; ++part) {
        add_quad(total, load_written(sums + (part * SHARE_QUADS + i) * STRIDE));
      }
      write(number, total);
    }
  }
}
