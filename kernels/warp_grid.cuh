// What a block of the variant `register` works on: the parameters of its tile, and which steps of which tiles it walks.
// Expects what a problem.cuh defines: M, N, K (SHAPE_K too), TRANS_A, TRANS_B and tiles().
#ifndef TILE_K
#define TILE_K 8
#endif
#ifndef WARPS_M
#define WARPS_M 4
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef LANES_M
#define LANES_M 4
#endif
#ifndef WPT_M
#define WPT_M 8
#endif
#ifndef WPT_N
#define WPT_N 8
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SHARE_K
#define SHARE_K 128    // what a block walks of a tile's steps, in 128ths; more than 128: of several tiles
#endif
#ifndef BY_CLUSTER
#define BY_CLUSTER 0   // 1: of the blocks that share a tile up to 8 are a cluster
#endif
#ifndef HELD
#define HELD 0         // 1: what is turned on the way to shared memory travels through registers, by 16 bytes
#endif
#ifndef LAVISH
#define LAVISH 0       // 1: registers as if one block a multiprocessor were enough; 0: ptxas keeps to what more blocks need
#endif
#if LAVISH
#define BOUNDS THREADS, 1
#else
#define BOUNDS THREADS
#endif
#ifndef BY_COLUMNS
#define BY_COLUMNS 1   // a thread's products of one k: 0 along rows of its sums, 1 along columns
#endif
#define STEPS ((SHAPE_K + TILE_K - 1u) / TILE_K)
// Steps of one block, where blocks cross from tile to tile: STEPS * SHARE_K / 128, rounded up.
#define WALKED (STEPS / 128 * SHARE_K + (STEPS % 128 * SHARE_K + 127) / 128)
#define CROSSING (SHARE_K > 128 || 128 % SHARE_K != 0)
#define SPLIT_K (CROSSING ? 1 : 128 / SHARE_K)               // blocks of each tile, where they do not
#define CLUSTER (!BY_CLUSTER ? 1 : SPLIT_K < 8 ? SPLIT_K : 8)
// Parts of a tile in the workspace, at most: what WALKED leaves of a tile that starts anywhere, or one of each cluster.
#define SPLIT (CROSSING ? (STEPS + WALKED - 2) / WALKED + 1 : SPLIT_K / CLUSTER)

constexpr unsigned QUAD = 16 / REAL_BYTES;   // elements of one 16-byte access
constexpr unsigned LANES_N = 32 / LANES_M;
constexpr unsigned TILE_M = WARPS_M * LANES_M * WPT_M;
constexpr unsigned TILE_N = WARPS_N * LANES_N * WPT_N;
constexpr unsigned THREADS = WARPS_M * WARPS_N * 32;
constexpr unsigned GROUP_M = 8;   // row tiles; 4 to 16 were equally fast (H200)
constexpr unsigned TILES_M = tiles(M, TILE_M), TILES_N = tiles(N, TILE_N);
constexpr unsigned ALL_STEPS = TILES_M * TILES_N * STEPS;   // of all tiles, one tile after the other

__device__ constexpr unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

// Some steps of one tile: where it starts, which rows and columns of it are its own to write, and which of its `parts`
// parts these steps are.
struct Work {
  unsigned m, n;                   // first row and column of the tile
  unsigned written_m, written_n;   // first row and column that are written
  unsigned tile, part, parts, first_step, steps;
};

// Where a tile starts that would start at `nominal`: inside the matrix as a whole, where that is large enough.
template <unsigned EXTENT, unsigned TILE>
__device__ __forceinline__ unsigned moved_inside(unsigned nominal) {
  return EXTENT % TILE == 0 || EXTENT < TILE ? nominal : smaller(nominal, EXTENT - TILE);
}

__device__ __forceinline__ void place_tile(Work& work) {
  const unsigned group = work.tile / (GROUP_M * TILES_N), inside = work.tile % (GROUP_M * TILES_N);
  const unsigned group_rows = smaller(GROUP_M, TILES_M - group * GROUP_M);
  work.written_m = (group * GROUP_M + inside % group_rows) * TILE_M;
  work.written_n = inside / group_rows * TILE_N;
  work.m = moved_inside<M, TILE_M>(work.written_m);
  work.n = moved_inside<N, TILE_N>(work.written_n);
}

// The work of a block that stays on its tile.
__device__ __forceinline__ Work work_of(unsigned block) {
  Work work;
  work.tile = block / SPLIT_K;
  work.part = block % SPLIT_K;
  work.parts = SPLIT_K;
  constexpr unsigned EACH = STEPS / SPLIT_K, MORE = STEPS % SPLIT_K;   // the first MORE parts have one step more
  work.first_step = work.part * EACH + smaller(work.part, MORE);
  work.steps = (work.part + 1) * EACH + smaller(work.part + 1, MORE) - work.first_step;
  place_tile(work);
  return work;
}

// The work of a block that crosses from tile to tile: from step `from` of all steps to the end of its tile or to `end`.
__device__ __forceinline__ Work work_between(unsigned from, unsigned end) {
  Work work;
  work.tile = from / STEPS;
  work.first_step = from % STEPS;
  work.steps = smaller(STEPS - work.first_step, end - from);
  const unsigned first = work.tile * STEPS;   // of the tile
  work.part = from / WALKED - first / WALKED;
  work.parts = (first + STEPS - 1) / WALKED - first / WALKED + 1;
  place_tile(work);
  return work;
}
