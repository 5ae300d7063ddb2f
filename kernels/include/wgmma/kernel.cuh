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
#include "wgmma/pipeline.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/stage.cuh"
#include "wgmma/staged_convert.cuh"

// Registers are given from the other warpgroups to those that hold sums: 65536 in all.
constexpr bool MANY_SUMS = HELD_SUMS > 160;
constexpr unsigned CONSUMER_REGISTERS = CONSUMERS == 1 ? 240 : PRODUCTS == 1 || MANY_SUMS ? 232 : 216;
constexpr unsigned PRODUCER_REGISTERS = CONSUMERS == 2 && PRODUCTS == 3 && MANY_SUMS ? 24 : 40;
constexpr bool REGISTERS_MOVE = THREADS > 256;   // fewer threads have enough

// Load: both operands' tiles of each step, by copies that are on their way while the thread goes on.
__device__ __forceinline__ void load(const Operands& operands, unsigned ring, const Pipeline& pipeline) {
  SharedOperand shared(threadIdx.x % 128);
  RegisterOperand other(threadIdx.x % 128);
  PipelineState state;
#pragma unroll 1
  for (TileScheduler tiles; tiles.is_valid(); tiles.advance()) {
    const Work work = tiles.work();
    shared.start(SHARED_A ? operands.A : operands.B, SHARED_A ? work.m : work.n, work.first_step * STEP_K);
    other.start(SHARED_A ? operands.B : operands.A, SHARED_A ? work.n : work.m, work.first_step * STEP_K);
#pragma unroll 1
    for (unsigned step = tiles.units() * STEPS_AT_ONCE; step > 0; --step) {
      pipeline.wait_empty(state);
      const unsigned buffer = ring + state.stage * STAGE_BYTES;
      shared.copy(buffer + (STAGED ? STAGED_AT : 0));
      other.copy(buffer + REGISTER_AT);
      pipeline.commit_loaded(state);
      state.advance();
    }
  }
  if (PRODUCTS == 1) {   // as in convert()
    pipeline.wait_empty(state);
    mbarrier_arrive(pipeline.full + 8 * state.stage);
  }
  cp_async_wait_all();
}

// Convert: the low parts of what tensor cores read from shared memory, where they are wanted.
__device__ __forceinline__ void convert(unsigned ring, const Pipeline& pipeline) {
  const UsedConverter converter(threadIdx.x % 128);
  PipelineState state;
#pragma unroll 1
  for (TileScheduler tiles; tiles.is_valid(); tiles.advance()) {
#pragma unroll 1
    for (unsigned step = tiles.units() * STEPS_AT_ONCE; step > 0; --step) {
      pipeline.wait_loaded(state);
      converter.convert(ring + state.stage * STAGE_BYTES);
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
struct Consumer {
  static constexpr unsigned LINES = 64 * BLOCKS_R;
  float sum[BLOCKS_R][SUMS];
  PipelineState state;
  unsigned ring, warpgroup, turn_phase = 0;
  FragmentReader<RegisterOperand> reader;
  const Pipeline& pipeline;

  __device__ __forceinline__ Consumer(unsigned ring, const Pipeline& pipeline)
      : ring(ring), reader(threadIdx.x / 128 * LINES + threadIdx.x / 32 % 4 * 16, threadIdx.x % 32),
        pipeline(pipeline) {
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

  // What comes after BLOCK of this step: the next block of it, or the first of the next step.
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
    if constexpr (!AHEAD) current.split(x);
    const unsigned operand = buffer(), done = pipeline.empty + 8 * state.stage;
    wait_turn<BLOCK>();
    warpgroup_arrive();
    multiply(target, current, operand);
    warpgroup_commit_batch();
    if (CONSUMERS == 2) mbarrier_arrive_warp(pipeline.turn + 8 * (1 - warpgroup));
    if constexpr (AHEAD) {
      read_next<BLOCK>(x);
      next.split(x);
      next.fence();
    }
    warpgroup_wait(target);
    if constexpr (AHEAD) current.fence();   // its registers are not free before
    if constexpr (BLOCK == BLOCKS_R - 1) mbarrier_arrive_warp(done);
    if constexpr (!AHEAD) read_next<BLOCK>(x);
    if constexpr (PRODUCTS == 3) {
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[BLOCK][i] += part[i];
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
    if constexpr (AHEAD) one.split(x);
#pragma unroll 1
    for (TileScheduler tiles; tiles.is_valid(); tiles.advance()) {
#pragma unroll
      for (unsigned i = 0; i < BLOCKS_R * SUMS; ++i) sum[i / SUMS][i % SUMS] = 0;
#pragma unroll 1
      for (unsigned left = tiles.units(); left > 0; --left) {
        step<0>(one, two, x);
        if constexpr (BLOCKS_R == 2) step<BLOCKS_R - 1>(AHEAD ? two : one, one, x);
        else if constexpr (AHEAD) step<0>(two, one, x);
      }
      const Work work = tiles.work();
      if (SPLIT_K == 1 || work.parts == 1) finish(sum, work, operands, epilogue);
      else finish_part(sum, work, warpgroup, workspace, is_last, operands, epilogue);
    }
  }
};

// All that a block has to do: it sets up the ring, and each warpgroup takes its role.
template <class Epilogue>
__device__ __forceinline__ void compute_block(
    const float* A, const float* B, const Epilogue& epilogue, unsigned char* workspace) {
  const Operands operands = {A, B};
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[Pipeline::COUNT];
  __shared__ unsigned is_last[2];
  const unsigned ring = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const Pipeline pipeline(shared_address(barriers));
  if (threadIdx.x == 0) pipeline.initialize();
  __syncthreads();
  if (threadIdx.x < 128 * CONSUMERS) {
    if constexpr (REGISTERS_MOVE) warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    Consumer(ring, pipeline).run(workspace, is_last, operands, epilogue);
  } else {
    if constexpr (REGISTERS_MOVE) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
    if (PRODUCTS == 1 || threadIdx.x >= 128 * (CONSUMERS + 1)) load(operands, ring, pipeline);
    else convert(ring, pipeline);
  }
}
