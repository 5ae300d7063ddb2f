// The variants for Hopper as a whole: op(A) op(B), tile by tile, each finished sum handed to the kernel's Epilogue.
//
// Each warpgroup of a block walks through the same list of tiles (scheduler.cuh). One loads, one converts, one or two
// multiply and finish; they meet at the barriers of a ring of buffers (pipeline.cuh), whose stages hold what stage.cuh
// says.
#pragma once
#include "ptx/warpgroup.cuh"
#include "wgmma/convert.cuh"
#include "wgmma/finish.cuh"
#include "wgmma/fragment.cuh"
#include "wgmma/marks.cuh"
#include "wgmma/multicast.cuh"
#include "wgmma/pipeline.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/stage.cuh"
#include "wgmma/staged_convert.cuh"

// Registers are given from the other warpgroups to those that hold sums: 65536 in all.
constexpr bool MANY_SUMS = HELD_SUMS > 160;
constexpr unsigned CONSUMER_REGISTERS = CONSUMERS == 1 ? 240 : PRODUCTS == 1 || MANY_SUMS ? 232 : 216;
constexpr unsigned PRODUCER_REGISTERS = CONSUMERS == 2 && PRODUCTS == 3 && MANY_SUMS ? 24 : 40;
constexpr bool REGISTERS_MOVE = THREADS > 256;   // fewer threads have enough

// A walk of all warpgroups through the tiles of a round: at first through all, then through those that need another pass.
struct Walk {
  unsigned round, pass;   // 0 is the first pass
  unsigned facts;         // that were known when the pass began
  Marks* marks;

  __device__ __forceinline__ bool passes_over(const TileScheduler& tiles) const {
    return PRODUCTS == 3 && pass > 0 && marks->of_tile(pass, tiles.number()) == 0;
  }
};

// Load: both operands' tiles of each step, by copies that are on their way while the thread goes on.
__device__ __forceinline__ void load(
    const Operands& all_operands, const SharedMap& map, unsigned ring, const Pipeline& pipeline, const Walk& walk) {
  SharedLoader<CLUSTER> shared(map, threadIdx.x % 128);
  RegisterOperand other(threadIdx.x % 128);
  PipelineState state;
#pragma unroll 1
  for (TileScheduler tiles(walk.round); tiles.is_valid(); tiles.advance()) {
    if (walk.passes_over(tiles)) continue;
    const Work work = tiles.work();
    const Operands operands = all_operands.of_matrix(matrix_of(work));
    shared.start(SHARED_A ? operands.A : operands.B, SHARED_A ? work.m : work.n, work.first_step * STEP_K,
                 (SHARED_A ? STRIDE_A : STRIDE_B) == 0 ? 0 : matrix_of(work));
    other.start(SHARED_A ? operands.B : operands.A, SHARED_A ? work.n : work.m, work.first_step * STEP_K);
#pragma unroll 1
    for (unsigned step = tiles.units() * STEPS_AT_ONCE; step > 0; --step) {
      pipeline.wait_empty(state);
      const unsigned buffer = ring + state.stage * STAGE_BYTES;
      shared.copy(buffer, pipeline.full + 8 * state.stage);
      other.copy(buffer + REGISTER_AT);
      pipeline.commit_loaded(state);
      state.advance();
    }
  }
  if (PRODUCTS == 1) {   // as in convert()
    pipeline.wait_empty(state);
    mbarrier_arrive(pipeline.full + 8 * state.stage);
    if (CLUSTER > 1 && threadIdx.x % 128 == 0) mbarrier_arrive(pipeline.full + 8 * state.stage);
  }
  cp_async_wait_all();
}

// Convert: the low parts of what tensor cores read from shared memory, where they are wanted.
template <class Pass>
__device__ __forceinline__ void convert(Pass pass, unsigned ring, const Pipeline& pipeline, const Walk& walk) {
  const UsedConverter converter(threadIdx.x % 128);
  PipelineState state;
#pragma unroll 1
  for (TileScheduler tiles(walk.round); tiles.is_valid(); tiles.advance()) {
    if (walk.passes_over(tiles)) continue;
#pragma unroll 1
    for (unsigned step = tiles.units() * STEPS_AT_ONCE; step > 0; --step) {
      pipeline.wait_loaded(state);
      converter.convert(pass, ring + state.stage * STAGE_BYTES);
      if (step == 1) {   // known before the tile's last numbers are
        if (pass.smallest.is_tiny()) walk.marks->note(Marks::SHARED_IS_TINY);
        if constexpr (!Pass::IS_FIRST) atomicMax(&walk.marks->largest_shared, __float_as_uint(pass.largest));
      }
      fence_proxy_async();
      pipeline.commit_full(state);
      state.advance();
    }
  }
  // Consumers read ahead by one step: after the last, of what an earlier one has left, and use nothing of it.
  pipeline.wait_empty(state);
  pipeline.commit_full(state);
}

// Multiply and finish: a warpgroup's lines are 64 in each of BLOCKS_R blocks; a warp's are 16 of each, a thread's two
// neighbours of those (fragment.cuh), which it writes to C together.
template <class Pass>
struct Consumer {
  static constexpr unsigned LINES = 64 * BLOCKS_R;
  static constexpr bool SPLITS_AHEAD = AHEAD && Pass::IS_FIRST;
  float sum[BLOCKS_R][SUMS];
  PipelineState state;
  unsigned ring, warpgroup, turn_phase = 0;
  FragmentReader<RegisterOperand> reader;
  const Pipeline& pipeline;
  const Walk& walk;
  Pass pass;

  __device__ __forceinline__ Consumer(Pass pass, unsigned ring, const Pipeline& pipeline, const Walk& walk)
      : ring(ring), reader(threadIdx.x / 128 * LINES + threadIdx.x / 32 % 4 * 16, threadIdx.x % 32), pipeline(pipeline),
        walk(walk), pass(pass) {
    warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);   // the same in all lanes, as the compiler then knows
  }

  __device__ __forceinline__ unsigned buffer() const { return ring + state.stage * STAGE_BYTES; }

  // Two warpgroups start their products by turns: while one's are computed, the other prepares. Waiting in a loop also
  // keeps ptxas from moving additions to sums past it, which a named barrier does not.
  template <unsigned BLOCK>
  __device__ __forceinline__ void wait_turn() {
    if constexpr (CONSUMERS == 1) return;
    mbarrier_wait(pipeline.turn + 8 * warpgroup, BLOCKS_R == 2 ? BLOCK : turn_phase);
    if (BLOCKS_R == 1) turn_phase ^= 1;
  }

  // Reads the block after BLOCK: the next one of this step, or the first of the next step.
  template <unsigned BLOCK>
  __device__ __forceinline__ void read_next(float (&x)[STEPS_TF32][4]) {
    constexpr bool IS_LAST = BLOCK == BLOCKS_R - 1;
    if constexpr (IS_LAST) {
      state.advance();
      pipeline.wait_full(state);
    }
    reader.read(x, buffer() + REGISTER_AT, IS_LAST ? 0 : BLOCK + 1);
  }

  // The products of one block and step, while which the next numbers are read and, where registers suffice, split.
  template <unsigned BLOCK>
  __device__ __forceinline__ void step(Fragment& current, Fragment& next, float (&x)[STEPS_TF32][4]) {
    float part[SUMS];
    float (&target)[SUMS] = PRODUCTS == 1 ? sum[BLOCK] : part;
    if constexpr (!SPLITS_AHEAD) current.split(pass, x);
    const unsigned operand = buffer(), done = pipeline.empty + 8 * state.stage;
    wait_turn<BLOCK>();
    warpgroup_arrive();
    multiply(target, current, operand);
    warpgroup_commit_batch();
    if (CONSUMERS == 2) mbarrier_arrive_warp(pipeline.turn + 8 * (1 - warpgroup));
    if constexpr (SPLITS_AHEAD) {
      read_next<BLOCK>(x);
      next.split(pass, x);
      next.fence();
    }
    warpgroup_wait(target);
    if constexpr (SPLITS_AHEAD) current.fence();   // its registers are not free before
    if constexpr (BLOCK == BLOCKS_R - 1) pipeline.release(done);
    if constexpr (!SPLITS_AHEAD) read_next<BLOCK>(x);
    if constexpr (PRODUCTS == 3) {
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[BLOCK][i] += part[i];
    }
  }

  // Whether the warpgroup's sums are to be written now: not, if they need another pass or were written before.
  __device__ __forceinline__ bool settle(const TileScheduler& tiles, const Work& work, const Operands& operands) {
    if constexpr (PRODUCTS == 1) return true;   // TF32 has infinities and NaN
    Marks& marks = *walk.marks;
    const unsigned number = tiles.number();
    if constexpr (Pass::IS_FIRST) {
      constexpr float UNSCALE = 1 / (RAW_IS_HIGH ? FIRST_SCALE : FIRST_SCALE * FIRST_SCALE);
      bool is_odd = RAW_IS_HIGH && (marks.now() & Marks::SHARED_IS_TINY);
#pragma unroll
      for (unsigned i = 0; i < BLOCKS_R * SUMS; ++i) {
        sum[i / SUMS][i % SUMS] *= UNSCALE;
        is_odd |= !is_finite(sum[i / SUMS][i % SUMS]);
      }
      if (!warpgroup_any(warpgroup, is_odd)) return true;
      if (threadIdx.x % 128 == 0) marks.mark(1, number, warpgroup);
      return false;
    } else {
      if (!(marks.of_tile(walk.pass, number) >> warpgroup & 1)) return false;
      const unsigned known = walk.facts;
      if (pass.smallest.is_tiny()) marks.note(Marks::REGISTER_IS_TINY);
      if (walk.pass == 1 && warpgroup_any(warpgroup, (marks.now() & ~known & 3) != 0)) {
        if (threadIdx.x % 128 == 0) marks.mark(2, number, warpgroup);
        return false;
      }
      float largest = pass.largest;   // of the numbers that these sums are made of: four lanes have them
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float largest_shared = __uint_as_float(*static_cast<volatile unsigned*>(&marks.largest_shared));
      const float unscale = (known & Marks::REGISTER_IS_TINY ? 1 / TINY_SCALE : 1.0f)
          * (known & Marks::SHARED_IS_TINY ? 1 / TINY_SCALE : 1.0f);
      mend(sum, unscale, cannot_overflow(largest, largest_shared), work, tiles.units() * STEPS_AT_ONCE,
           operands.of_matrix(matrix_of(work)));
      return true;
    }
  }

  template <class Epilogue>
  __device__ __forceinline__ void run(
      unsigned char* workspace, unsigned* is_last, const Operands& operands, const Epilogue& epilogue) {
    if (CONSUMERS == 2 && warpgroup == 1) mbarrier_arrive_warp(pipeline.turn);   // the first turn is warpgroup 0's
    Fragment one, two;
    float x[STEPS_TF32][4];
    pipeline.wait_full(state);
    reader.read(x, buffer() + REGISTER_AT, 0);
    if constexpr (SPLITS_AHEAD) one.split(pass, x);
#pragma unroll 1
    for (TileScheduler tiles(walk.round); tiles.is_valid(); tiles.advance()) {
      if (walk.passes_over(tiles)) continue;
#pragma unroll
      for (unsigned i = 0; i < BLOCKS_R * SUMS; ++i) sum[i / SUMS][i % SUMS] = 0;
#pragma unroll 1
      for (unsigned left = tiles.units() * (SPLITS_AHEAD ? 1 : STEPS_AT_ONCE); left > 0; --left) {
        step<0>(one, two, x);
        if constexpr (BLOCKS_R == 2) step<BLOCKS_R - 1>(SPLITS_AHEAD ? two : one, one, x);
        else if constexpr (SPLITS_AHEAD) step<0>(two, one, x);
      }
      const Work work = tiles.work();
      if (!settle(tiles, work, operands)) continue;
      const Epilogue here = epilogue.of_matrix(matrix_of(work));
      if (SPLIT_K == 1 || work.parts == 1) finish(sum, work, here);
      else finish_part(sum, work, warpgroup, workspace, is_last, here);
    }
  }
};

// Readies the ring for another walk, when all threads are through with the last; one calls `prepare`.
template <class Prepare>
__device__ __forceinline__ void begin_anew(const Pipeline& pipeline, Prepare prepare) {
  __syncthreads();
  if (threadIdx.x == 0) {
    pipeline.initialize();
    prepare();
  }
  __syncthreads();
}

// Calls `first` for a walk through all tiles, and `more` for walks through those that need another pass. Every thread
// must call it.
template <class First, class More>
__device__ __forceinline__ void walk_through(const Pipeline& pipeline, Marks* marks, First first, More more) {
#pragma unroll 1
  for (unsigned round = 0; round < ROUNDS; ++round) {
    if (round > 0) begin_anew(pipeline, [=] { marks->clear(); });
    first(Walk{round, 0, 0, marks});
    if (PRODUCTS == 1) return;
    __syncthreads();
#pragma unroll 1
    for (unsigned pass = 1; pass <= 2; ++pass) {
      const unsigned facts = marks->now();
      if (!(facts & (pass == 1 ? Marks::NEEDS_SECOND : Marks::NEEDS_THIRD))) break;
      begin_anew(pipeline, [] {});
      more(Walk{round, pass, facts, marks});
      __syncthreads();
    }
  }
}

// All that a block has to do: it sets up the ring, and each warpgroup takes its role.
template <class Epilogue>
__device__ __forceinline__ void compute_block(
    const float* A, const float* B, const Epilogue& epilogue, unsigned char* workspace, const SharedMap& map = {}) {
  const Operands operands = {A, B};
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[Pipeline::COUNT];
  __shared__ unsigned is_last[2];
  __shared__ Marks marks;
  const unsigned ring = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const Pipeline pipeline(shared_address(barriers));
  if (threadIdx.x == 0) {
    pipeline.initialize();
    if (PRODUCTS == 3) marks.clear();
  }
  if constexpr (CLUSTER > 1) cluster_sync();
  else __syncthreads();
  if (threadIdx.x < 128 * CONSUMERS) {
    if constexpr (REGISTERS_MOVE) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    walk_through(
        pipeline, &marks,
        [&](const Walk& walk) {
          Consumer<FirstPass>(FirstPass(), ring, pipeline, walk).run(workspace, is_last, operands, epilogue);
        },
        [&](const Walk& walk) {
          const SecondPass pass(walk.facts & Marks::REGISTER_IS_TINY);
          Consumer<SecondPass>(pass, ring, pipeline, walk).run(workspace, is_last, operands, epilogue);
        });
  } else {
    if constexpr (REGISTERS_MOVE) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
    if (PRODUCTS == 1 || threadIdx.x >= 128 * (CONSUMERS + 1)) {
      const auto run = [&](const Walk& walk) { load(operands, map, ring, pipeline, walk); };
      walk_through(pipeline, &marks, run, run);
    } else {
      walk_through(
          pipeline, &marks, [&](const Walk& walk) { convert(FirstPass(), ring, pipeline, walk); },
          [&](const Walk& walk) { convert(SecondPass(walk.facts & Marks::SHARED_IS_TINY), ring, pipeline, walk); });
    }
  }
  if constexpr (CLUSTER > 1) {
    __syncwarp();
    cluster_sync();   // until then another block's lines and arrivals may come in
  }
}
