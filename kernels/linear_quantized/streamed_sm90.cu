// Y = X dequantised(W)^T on Hopper's tensor cores, for up to 64 rows of X, W at the speed of memory (problem.cuh has the
// layouts). PTX for sm_90a.
//
// A thread loads steps of a tile of W, 128 bytes of each row, and of X, by tensor maps into a ring in shared memory. Rows of W
// stand where a product has its 64 rows, rows of X where it has 16 to 64 columns. A warpgroup makes numbers of 16 bits
// of its 64 rows' weights in registers, exactly, and multiplies them straight from there, so that X is read from shared memory
// once for 64 rows. Sums of 128 k are multiplied by their scale in float32. PARTS warpgroups take steps in turn, SPLIT blocks of
// a cluster share k; what they have is added up in a fixed order.
//   tile  m x 64 * BLOCKS; with rows at launch there is room for 64, those behind the last are zeros
//   block (128 * BLOCKS * PARTS + 32)
//   grid  (tiles * SPLIT)
#include "streamed_sm90_parameters.cuh"

#include "ptx/cluster_push.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/wgmma_half_registers.cuh"
#include "streamed_sm90_ring.cuh"
#include "streamed_sm90_weights.cuh"

typedef float Sums[SUMS];

// Scales and zero points of a thread's two rows, of a group of 128 k of the block's share.
struct Grids {
  Line<Half, 1 + ZEROS> rows[2];
  __device__ __forceinline__ void read(const unsigned* grids, unsigned line, unsigned group) {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned* const own = grids + (line + 8 * i) * GRID_WORDS;
      rows[i] = reinterpret_cast<const Line<Half, 1 + ZEROS>*>(own)[GROUPS == 1 ? 0 : tw::min(group, OWN_GROUPS - 1)];
    }
  }
  __device__ __forceinline__ float scale(unsigned row) const { return rows[row].lane[0]; }
  __device__ __forceinline__ float zero(unsigned row) const { return ZEROS ? static_cast<float>(rows[row].lane[ZEROS]) : 8.0f; }
};

// By all that multiply: the scales of the tile's rows to shared memory.
__device__ __forceinline__ void read_grids(unsigned* grids, const Half* S, const Share& share) {
  constexpr bool IS_PAIR = ZEROS || (GROUPS % 2 == 0 && (STEP_GROUPS == 2 || STEPS % (2 * SPLIT) == 0));
  constexpr unsigned WIDTH = IS_PAIR ? 2 : 1, COUNT = OWN_GROUPS * (1 + ZEROS) / WIDTH;   // of a row
  typedef Line<Half, WIDTH> Piece;
  const unsigned first = GROUPS == 1 ? 0 : share.first_step * STEP_GROUPS * (1 + ZEROS);
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < TILE_N * COUNT; i += MULTIPLYING) {
    const unsigned row = i / COUNT, at = tw::min(first + i % COUNT * WIDTH, GROUPS * (1 + ZEROS) - WIDTH);
    const Half* const from = S + static_cast<size_t>(tw::min(share.row + row, N - 1)) * (GROUPS * (1 + ZEROS)) + at;
    reinterpret_cast<Piece*>(grids + row * GRID_WORDS)[i % COUNT] = *reinterpret_cast<const Piece*>(from);
  }
  asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLYING) : "memory");
}

// Starts the products of 64 k: `x` names their box of X, by PTX ISA, "Matrix Descriptor Format", in units of 16 bytes.
__device__ __forceinline__ void start(Sums& part, const Weights& weights, unsigned box, bool is_first) {
  const unsigned long long x = (box & 0x3ffff) / 16 | 1ull << 16 | 8ull * LINE_BYTES / 16 << 32 | 1ull << 62;
  warpgroup_arrive();
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) wgmma_k16<IS_BFLOAT16>(part, weights.pairs[i], x + i * 2, i > 0 || !is_first);
  warpgroup_commit_batch();
}

// By a warpgroup: sum = the products of its steps, one after the other. The weights of 64 k are made while the products of those
// before are under way.
__device__ __forceinline__ void multiply(
    Sums& sum, const Ring& ring, const Share& share, const unsigned* scales, const unsigned char* shared, unsigned warp) {
  const unsigned mine = warp / 4 / BLOCKS, line = warp / 4 % BLOCKS * 64 + warp % 4 * 16 + first_row_of(threadIdx.x % 32);
  if (mine >= share.steps) return;
  Place place{mine, 0};
  Grids grids, next;
  Weights first, second;
  Sums part;
  const auto read = [&](Weights& weights, unsigned at, unsigned number, const Grids& own) {
    const float zero[2] = {own.zero(0), own.zero(1)};
    weights.read(shared + at * STAGE_BYTES + line * LINE_BYTES, number, zero);
  };
  grids.read(scales, line, mine * STEP_GROUPS);
  mbarrier_wait(ring.full + 8 * place.at, place.parity);
  read(first, place.at, 0, grids);
#pragma unroll 1
  for (unsigned step = mine; step < share.steps; step += PARTS) {
    const unsigned at = place.at;
    place.advance(PARTS);
#pragma unroll
    for (unsigned group = 0; group < STEP_GROUPS; ++group) {
      const bool is_last = group + 1 == STEP_GROUPS;   // of the step
      const unsigned boxes = ring.stage(at) + BLOCKS * BLOCK_BYTES + group * 2 * BOX_BYTES;
      start(part, first, boxes, true);
      next.read(scales, line, (is_last ? step + PARTS : step) * STEP_GROUPS + (group + 1) % STEP_GROUPS);
      read(second, at, 2 * group + 1, grids);
      start(part, second, boxes + BOX_BYTES, false);
      warpgroup_wait_but<1>();
      first.fence();
      if (!is_last) {
        read(first, at, 2 * group + 2, next);
      } else if (step + PARTS < share.steps) {
        mbarrier_wait(ring.full + 8 * place.at, place.parity);
        read(first, place.at, 0, next);
      }
      warpgroup_wait_but<0>();
      fence_sums(part);
      second.fence();
      if (is_last) mbarrier_arrive_warp(ring.empty + 8 * at);
      // Where the last step is longer than what is left of k, what is behind that is no number of the problem.
      const bool is_behind = K % STEP_K != 0 && is_last && share.first_step + step + 1 == STEPS;
      const float scale[2] = {is_behind ? 0.0f : grids.scale(0), is_behind ? 0.0f : grids.scale(1)};
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[i] += scale[i / 2 % 2] * part[i];
      grids = next;
    }
  }
}

// By a warpgroup: its sums to the shared memory of the blocks that add them up, rows of W side by side.
__device__ __forceinline__ void put_sums(unsigned sums, const Sums& sum, unsigned warp, unsigned rank) {
  const unsigned lane = threadIdx.x % 32, part = rank * PARTS + warp / 4 / BLOCKS;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = warp / 4 % BLOCKS * 64 + warp % 4 * 16 + first_row_of(lane) + half * 8, four = row / 4;
    const unsigned local = sums + ((part * MOST_M + lane % 4 * 2) * PITCH + four / SPLIT * 4 + row % 4) * sizeof(float);
    const unsigned target = SPLIT == 1 ? local : mapa(local, four % SPLIT);
#pragma unroll
    for (unsigned i = 0; i < SUMS / 2; ++i) {
      const unsigned m = i / 2 * 8 + i % 2;
      if (M != COLUMNS && m + lane % 4 * 2 >= M) continue;
      const float x = sum[i / 2 * 4 + half * 2 + i % 2];
      if constexpr (SPLIT == 1) st_shared<0>(target + m * PITCH * sizeof(float), x);
      else st_shared_cluster(target + m * PITCH * sizeof(float), x);
    }
  }
}

// By all that multiply: adds up the parts' sums of the block's rows of W, and writes them.
__device__ __forceinline__ void finish(const float* sums, const Share& share, Half* Y) {
  for (unsigned i = threadIdx.x; i < M * OWN / 4; i += MULTIPLYING) {
    const unsigned m = i / (OWN / 4), four = i % (OWN / 4), at = (four * SPLIT + share.part) * 4, n = share.row + at;
    if ((OWN * SPLIT != TILE_N && at >= TILE_N) || n >= N) continue;
    Pack<4> total = {};
#pragma unroll
    for (unsigned part = 0; part < SPLIT * PARTS; ++part) {
      const Pack<4> some = load_pack<4>(sums + (part * MOST_M + m) * PITCH + four * 4);
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) total.lane[j] += some.lane[j] / UNIT;
    }
    Half* const target = Y + static_cast<size_t>(m) * N + n;
    if (N % 4 == 0) {
      store_floats<4>(target, total);
    } else {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        if (n + j < N) target[j] = Half(total.lane[j]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(SPLIT, 1, 1) linear_quantized(
    const Half* __restrict__, const Weight* __restrict__, const Half* __restrict__ S, Half* __restrict__ Y
    SIZE_PARAMETER, const __grid_constant__ TensorMap map_w, const __grid_constant__ TensorMap map_x) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024;
  unsigned char* const shared = dynamic + (start - shared_address(dynamic));
  const Ring ring(start, shared_address(barriers));
  const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);   // which the compiler knows to be the same in all lanes
  if (warp == MULTIPLYING / 32) {
    if (threadIdx.x % 32 == 0) {
      prefetch_tensor_map(map_w);
      prefetch_tensor_map(map_x);
    }
    ring.prepare();
  }
  if constexpr (SPLIT > 1) cluster_arrive();   // that this block is there: others put sums into its memory
  __syncthreads();
  launch_dependents();
  wait_for_launch_before();
  const Share share;
  Sums sum = {};
  if (warp < MULTIPLYING / 32) {
    unsigned* const grids = reinterpret_cast<unsigned*>(shared + STAGES * STAGE_BYTES + BESIDE);
    read_grids(grids, S, share);
    multiply(sum, ring, share, grids, shared, warp);
  } else {
    if (threadIdx.x % 32 == 0) ring.load(map_w, map_x, share);
    __syncwarp();
  }
  if constexpr (SPLIT > 1) cluster_wait();
  else __syncthreads();   // the ring is read to its end
  const unsigned sums = start + (SPLIT > 1 ? STAGES * STAGE_BYTES : 0);
  if (warp < MULTIPLYING / 32) put_sums(sums, sum, warp, share.part);
  if constexpr (SPLIT > 1) cluster_sync();
  else __syncthreads();
  if (warp < MULTIPLYING / 32) finish(static_cast<const float*>(__cvta_shared_to_generic(sums)), share, Y);
}
