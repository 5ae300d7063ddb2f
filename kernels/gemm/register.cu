// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// The CUDA cores kept busy: a block computes a TILE_M x TILE_N tile of C, a warp a rectangle of it, a thread WPT_M x
// WPT_N in registers. Steps of TILE_K along k travel by asynchronous copies through a ring of STAGES buffers in shared
// memory, with k outermost, so that a thread's share of one k is a few 16-byte reads; those run one k ahead of the
// products, across steps too. Beside FMAs the inner loop holds those reads and, once a step, the copies, whose addresses
// are a register plus constants, because the shape is a constant.
//   tile  (WARPS_M * LANES_M * WPT_M) x (WARPS_N * LANES_N * WPT_N), LANES_N = 32 / LANES_M
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K): one axis, in groups of GROUP_M row tiles that share columns of B in the
//         L2 cache. SPLIT_K blocks share a tile: each walks a part of k, then they add up their tiles, through the shared
//         memory of clusters (BY_CLUSTER) and a workspace, in a fixed order (split_tile.cuh).
// An operand that is contiguous along k in memory (A, or B with TRANS_B) is transposed by element-wide copies; the other
// moves in the widest copies that its rows divide into. A tile at the edge is moved back inside where the matrix is
// larger than the tile, and writes only what its neighbour does not; elsewhere, what lies outside is copied as zero.
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for the hierarchy of tiles and the two-level pipeline.
#include "real.cuh"
#include "problem.cuh"
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
#ifndef SPLIT_K
#define SPLIT_K 1
#endif
#ifndef BY_CLUSTER
#define BY_CLUSTER 0   // 1: of the SPLIT_K blocks up to 8 are a cluster, as many as divide them
#endif
#ifndef BY_COLUMNS
#define BY_COLUMNS 1   // a thread's products of one k: 0 along rows of its sums, 1 along columns
#endif
#define CLUSTER (!BY_CLUSTER || SPLIT_K % 2 ? 1 : SPLIT_K % 4 ? 2 : SPLIT_K % 8 ? 4 : 8)
#define SPLIT (SPLIT_K / CLUSTER)
#include "async_copy.cuh"
#include "split.cuh"

constexpr unsigned QUAD = 16 / REAL_BYTES;   // elements of one 16-byte access
constexpr unsigned LANES_N = 32 / LANES_M;
constexpr unsigned TILE_M = WARPS_M * LANES_M * WPT_M;
constexpr unsigned TILE_N = WARPS_N * LANES_N * WPT_N;
constexpr unsigned THREADS = WARPS_M * WARPS_N * 32;
constexpr unsigned GROUP_M = 8;   // row tiles; 4 to 16 were equally fast (H200)
constexpr unsigned STEPS = tiles(K, TILE_K);
constexpr unsigned TILES_M = tiles(M, TILE_M), TILES_N = tiles(N, TILE_N);

__device__ constexpr unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

// A block's part of the work: where its tile starts, which rows and columns of it are the block's to write, which steps
// along k it walks.
struct Work {
  unsigned m, n;                   // first row and column of the tile
  unsigned written_m, written_n;   // first row and column that this block writes
  unsigned tile, rank, first_step, steps;
};

// Where a tile starts that would start at `nominal`: inside the matrix as a whole, where that is large enough.
template <unsigned EXTENT, unsigned TILE>
__device__ __forceinline__ unsigned moved_inside(unsigned nominal) {
  return EXTENT % TILE == 0 || EXTENT < TILE ? nominal : smaller(nominal, EXTENT - TILE);
}

__device__ __forceinline__ Work work_of(unsigned block) {
  Work work;
  work.tile = block / SPLIT_K;
  work.rank = block % SPLIT_K;
  const unsigned group = work.tile / (GROUP_M * TILES_N), inside = work.tile % (GROUP_M * TILES_N);
  const unsigned group_rows = smaller(GROUP_M, TILES_M - group * GROUP_M);
  work.written_m = (group * GROUP_M + inside % group_rows) * TILE_M;
  work.written_n = inside / group_rows * TILE_N;
  work.m = moved_inside<M, TILE_M>(work.written_m);
  work.n = moved_inside<N, TILE_N>(work.written_n);
  constexpr unsigned EACH = STEPS / SPLIT_K, MORE = STEPS % SPLIT_K;   // the first MORE ranks take one step more
  work.first_step = work.rank * EACH + smaller(work.rank, MORE);
  work.steps = (work.rank + 1) * EACH + smaller(work.rank + 1, MORE) - work.first_step;
  return work;
}

#include "async_operand.cuh"

typedef Operand<TILE_M, M, !TRANS_A> OperandA;
typedef Operand<TILE_N, N, TRANS_B> OperandB;

// A thread's share of one axis of the warp's rectangle: runs of RUN neighbours, the runs of neighbouring lanes touching.
template <unsigned WPT, unsigned LANES_ALONG>
struct Share {
  static constexpr unsigned RUN = QUAD;
  static_assert(WPT % RUN == 0, "16-byte reads");
  __device__ static __forceinline__ unsigned at(unsigned lane, unsigned i) {
    return i / RUN * (LANES_ALONG * RUN) + lane * RUN + i % RUN;
  }
  // `line` is where lane 0 would start, moved by the lane's RUN elements.
  __device__ static __forceinline__ void read(REAL (&share)[WPT], const REAL* line) {
#pragma unroll
    for (unsigned i = 0; i < WPT; i += RUN) {
      const Pack<RUN> run = load_pack<RUN>(line + i * LANES_ALONG);
#pragma unroll
      for (unsigned j = 0; j < RUN; ++j) share[i + j] = run.lane[j];
    }
  }
};
typedef Share<WPT_M, LANES_M> ShareM;
typedef Share<WPT_N, LANES_N> ShareN;

// Where the thread's first elements lie in a tile. Of four neighbouring lanes each two read the same 16 bytes of A, and
// each two the same of B: shared memory then serves half a warp at a time, not a quarter (measured on an H200: 2.0
// passes a read instead of 3.3).
struct Place {
  unsigned m, n;
  __device__ __forceinline__ Place() {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lane_m = lane % 2 + lane / (2 * LANES_N) * 2, lane_n = lane / 2 % LANES_N;
    m = warp / WARPS_N * (LANES_M * WPT_M) + lane_m * QUAD;
    n = warp % WARPS_N * (LANES_N * WPT_N) + lane_n * QUAD;
  }
};

// Every product of one k, back and forth along rows or columns: an FMA then shares a factor with the one before it,
// which stays in the operand cache. Two registers a cycle are all that the banks give, and an FMA has three operands.
__device__ __forceinline__ void multiply(REAL (&sum)[WPT_M][WPT_N], const REAL (&a)[WPT_M], const REAL (&b)[WPT_N]) {
  constexpr unsigned OUTER = BY_COLUMNS ? WPT_N : WPT_M, INNER = BY_COLUMNS ? WPT_M : WPT_N;
#pragma unroll
  for (unsigned outer = 0; outer < OUTER; ++outer) {
#pragma unroll
    for (unsigned step = 0; step < INNER; ++step) {
      const unsigned inner = outer % 2 ? INNER - 1 - step : step;
      const unsigned i = BY_COLUMNS ? inner : outer, j = BY_COLUMNS ? outer : inner;
      sum[i][j] += a[i] * b[j];
    }
  }
}

// The thread's share of the products of the block's steps.
__device__ __forceinline__ void add_products(
    REAL (&sum)[WPT_M][WPT_N], OperandA& a, OperandB& b, const REAL* tiles_a, const REAL* tiles_b, unsigned steps) {
  // Up to STAGES - 1 steps are on their way before the first is computed on.
#pragma unroll
  for (unsigned stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < steps) {
      a.copy(stage * OperandA::TILE_BYTES);
      b.copy(stage * OperandB::TILE_BYTES);
      a.advance();
      b.advance();
    }
    commit_copies();
  }
  wait_copies<STAGES - 2>();
  __syncthreads();

  REAL share_a[2][WPT_M], share_b[2][WPT_N];   // of the k at work, and of the next
  const REAL* line_a = tiles_a;
  const REAL* line_b = tiles_b;
  ShareM::read(share_a[0], line_a);
  ShareN::read(share_b[0], line_b);
  unsigned reading = 0, writing = STAGES - 1;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
    for (unsigned k = 0; k < TILE_K; ++k) {
      const unsigned next = (k + 1) % TILE_K;
      if (next == 0) {
        // The step is read to its end, so that the barrier also frees its buffer for the next copies.
        wait_copies<STAGES - 2>();
        __syncthreads();
        reading = reading == STAGES - 1 ? 0 : reading + 1;
        writing = writing == STAGES - 1 ? 0 : writing + 1;
        line_a = tiles_a + reading * (TILE_K * OperandA::PITCH);
        line_b = tiles_b + reading * (TILE_K * OperandB::PITCH);
        a.advance();
        b.advance();
      }
      ShareM::read(share_a[next % 2], line_a + next * OperandA::PITCH);
      ShareN::read(share_b[next % 2], line_b + next * OperandB::PITCH);
      if (k == 0) {
        // All copies of a step at once: ptxas puts three idle instructions ahead of every run of copies.
        if (step + (STAGES - 1) < steps) {
          a.copy(writing * OperandA::TILE_BYTES);
          b.copy(writing * OperandB::TILE_BYTES);
        }
        commit_copies();
      }
      multiply(sum, share_a[k % 2], share_b[k % 2]);
    }
  }
}

// WIDTH neighbours of C from as many finished sums, `written` being the first row and column that the block may write.
template <unsigned WIDTH>
__device__ __forceinline__ void write_c(
    REAL* C, const Work& work, unsigned row, unsigned column, const Pack<WIDTH>& sum, REAL alpha, REAL beta) {
  if (M % TILE_M != 0 && (row < work.written_m || row >= M)) return;
  if (N % TILE_N != 0 && (column < work.written_n || column >= N)) return;
  REAL* target = C + static_cast<size_t>(row) * N + column;
  Pack<WIDTH> out = {};
  if (!BETA_ZERO) out = load_pack<WIDTH>(target);
#pragma unroll
  for (unsigned i = 0; i < WIDTH; ++i) {
    out.lane[i] = BETA_ZERO ? alpha * sum.lane[i] : alpha * sum.lane[i] + beta * out.lane[i];
  }
  store_pack<WIDTH>(target, out);
}
constexpr unsigned WIDTH_C = common_divisor(N, QUAD);

// QUAD neighbours, in the widest stores that rows of C divide into.
__device__ __forceinline__ void write_quad(
    REAL* C, const Work& work, unsigned row, unsigned column, const Pack<QUAD>& sum, REAL alpha, REAL beta) {
#pragma unroll
  for (unsigned i = 0; i < QUAD; i += WIDTH_C) {
    Pack<WIDTH_C> part;
#pragma unroll
    for (unsigned j = 0; j < WIDTH_C; ++j) part.lane[j] = sum.lane[i + j];
    write_c<WIDTH_C>(C, work, work.m + row, work.n + column + i, part, alpha, beta);
  }
}

#include "split_tile.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C
     WORKSPACE_PARAMETER) {
  extern __shared__ __align__(16) REAL shared[];   // STAGES tiles of A, as many of B; in the end the block's tile of C
  REAL* shared_b = shared + STAGES * TILE_K * OperandA::PITCH;
  const Work work = work_of(blockIdx.x);
  const Place place;
  OperandA a(A, shared_address(shared), work.m, work.first_step);
  OperandB b(B, shared_address(shared_b), work.n, work.first_step);
  REAL sum[WPT_M][WPT_N] = {};
  add_products(sum, a, b, shared + place.m, shared_b + place.n, work.steps);
  const auto write = [&](unsigned number, const Pack<QUAD>& quad) {
    const unsigned i = number / ROW_QUADS, j = number % ROW_QUADS * QUAD;
    write_quad(C, work, place.m + ShareM::at(0, i), place.n + ShareN::at(0, j), quad, alpha, beta);
  };
  if constexpr (SPLIT_K > 1) {
    __syncthreads();   // the last step is read to its end
    add_split(sum, shared, workspace, work.tile, TILES_M * TILES_N, work.rank, write);
  } else {
#pragma unroll
    for (unsigned number = 0; number < THREAD_QUADS; ++number) write(number, quad_of(sum, number));
  }
}
