// What the warpgroups of tensor_sm90.cu do: load, convert, multiply. Each walks through the same list of work.
// Expects mbarrier.cuh, warpgroup_reader.cuh, warpgroup_staged.cuh, warpgroup_finish.cuh and what those expect.

// The ring's barriers, each an array of STAGES: copies are complete; low parts are written too; the buffer is free.
// Then whose turn it is to start products. Addresses in shared memory.
struct Barriers {
  unsigned loaded, full, empty, turn;
  static constexpr unsigned COUNT = 3 * STAGES + 2;
  __device__ __forceinline__ explicit Barriers(unsigned start)
      : loaded(start), full(PRODUCTS == 3 ? start + 8 * STAGES : start), empty(start + 16 * STAGES),
        turn(start + 24 * STAGES) {}
  __device__ __forceinline__ void initialize() const {
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      initialize_barrier(loaded + 8 * stage, LOADERS);
      if (PRODUCTS == 3) initialize_barrier(full + 8 * stage, 4);
      initialize_barrier(empty + 8 * stage, 4 * CONSUMERS);
    }
    for (unsigned i = 0; i < 2; ++i) initialize_barrier(turn + 8 * i, 4);
    publish_barriers();
  }
};

// Registers are given from the other warpgroups to those that hold sums: 65536 in all.
constexpr bool MANY_SUMS = HELD_SUMS > 160;
constexpr unsigned CONSUMER_REGISTERS = CONSUMERS == 1 ? 240 : PRODUCTS == 1 || MANY_SUMS ? 232 : 216;
constexpr unsigned PRODUCER_REGISTERS = CONSUMERS == 2 && PRODUCTS == 3 && MANY_SUMS ? 24 : 40;
constexpr bool REGISTERS_MOVE = THREADS > 256;   // fewer threads have enough

__device__ __forceinline__ void load_all(const Operands& operands, unsigned ring, const Barriers& barriers) {
  SharedOperand shared(threadIdx.x % 128);
  RegisterOperand other(threadIdx.x % 128);
  RingPlace place;
#pragma unroll 1
  for (WorkList list; list.is_open(); list.advance()) {
    const Work work = list.work();
    shared.start(SHARED_A ? operands.A : operands.B, SHARED_A ? work.m : work.n, work.first_step * STEP_K);
    other.start(SHARED_A ? operands.B : operands.A, SHARED_A ? work.n : work.m, work.first_step * STEP_K);
#pragma unroll 1
    for (unsigned step = list.units() * STEPS_AT_ONCE; step > 0; --step) {
      wait(barriers.empty + 8 * place.stage, place.parity ^ 1);
      const unsigned buffer = ring + place.stage * STAGE_BYTES;
      shared.copy(buffer + (STAGED ? STAGED_AT : 0));
      other.copy(buffer + REGISTER_AT);
      arrive_with_copies(barriers.loaded + 8 * place.stage);
      place.advance();
    }
  }
  if (PRODUCTS == 1) {   // as the converter does
    wait(barriers.empty + 8 * place.stage, place.parity ^ 1);
    arrive(barriers.full + 8 * place.stage);
  }
  wait_for_all_copies();
}

__device__ __forceinline__ void convert_all(unsigned ring, const Barriers& barriers) {
  const UsedConverter converter(threadIdx.x % 128);
  RingPlace place;
#pragma unroll 1
  for (WorkList list; list.is_open(); list.advance()) {
#pragma unroll 1
    for (unsigned step = list.units() * STEPS_AT_ONCE; step > 0; --step) {
      wait(barriers.loaded + 8 * place.stage, place.parity);
      converter.convert(ring + place.stage * STAGE_BYTES);
      show_to_tensor_cores();
      arrive_as_warp(barriers.full + 8 * place.stage);
      place.advance();
    }
  }
  // Consumers read ahead by one step: after the last, of what an earlier one has left, and use nothing of it.
  wait(barriers.empty + 8 * place.stage, place.parity ^ 1);
  arrive_as_warp(barriers.full + 8 * place.stage);
}

// One of the warpgroups that multiply. Its lines are 64 in each of BLOCKS_R blocks; a warp's are 16 of each, a thread's
// two neighbours of those (warpgroup_reader.cuh), which it writes to C together.
struct Consumer {
  static constexpr unsigned LINES = 64 * BLOCKS_R;
  float sum[BLOCKS_R][SUMS];
  RingPlace place;
  unsigned ring, warpgroup, turn_parity = 0;
  FragmentReader<RegisterOperand> reader;
  const Barriers& barriers;

  __device__ __forceinline__ Consumer(unsigned ring, const Barriers& barriers)
      : ring(ring), reader(threadIdx.x / 128 * LINES + threadIdx.x / 32 % 4 * 16, threadIdx.x % 32),
        barriers(barriers) {
    warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);   // the same in all lanes, as the compiler then knows
  }

  __device__ __forceinline__ unsigned stage() const { return ring + place.stage * STAGE_BYTES; }

  __device__ __forceinline__ void await_stage() const {
    wait(barriers.full + 8 * place.stage, place.parity);
    if (PRODUCTS == 1) show_to_tensor_cores();
  }

  // Two warpgroups start their products by turns: while one's are computed, the other prepares. Waiting in a loop also
  // keeps ptxas from moving additions to sums past it, which a named barrier does not.
  template <unsigned BLOCK>
  __device__ __forceinline__ void await_turn() {
    if constexpr (CONSUMERS == 1) return;
    wait(barriers.turn + 8 * warpgroup, BLOCKS_R == 2 ? BLOCK : turn_parity);
    if (BLOCKS_R == 1) turn_parity ^= 1;
  }
  __device__ __forceinline__ void pass_turn() const {
    if (CONSUMERS == 2) arrive_as_warp(barriers.turn + 8 * (1 - warpgroup));
  }

  // The products of one block and step, while which the next numbers are read and, where registers suffice, split.
  template <unsigned BLOCK>
  __device__ __forceinline__ void step(Fragment& current, Fragment& next, float (&x)[STEPS_TF32][4]) {
    constexpr bool IS_LAST = BLOCK == BLOCKS_R - 1;
    float part[SUMS];
    float (&target)[SUMS] = PRODUCTS == 1 ? sum[BLOCK] : part;
    if constexpr (!AHEAD) current.split(x);
    const unsigned here = stage(), done = barriers.empty + 8 * place.stage;
    await_turn<BLOCK>();
    begin_products();
    multiply(target, current, here);
    commit_products();
    pass_turn();
    if constexpr (AHEAD) {
      if constexpr (IS_LAST) {
        place.advance();
        await_stage();
      }
      reader.read(x, stage() + REGISTER_AT, IS_LAST ? 0 : BLOCK + 1);
      next.split(x);
      next.pin();
    }
    wait_products(target);
    if constexpr (AHEAD) current.pin();   // its registers are not free before
    if constexpr (IS_LAST) arrive_as_warp(done);
    if constexpr (!AHEAD) {
      if constexpr (IS_LAST) {
        place.advance();
        await_stage();
      }
      reader.read(x, stage() + REGISTER_AT, IS_LAST ? 0 : BLOCK + 1);
    }
    if constexpr (PRODUCTS == 3) {
#pragma unroll
      for (unsigned i = 0; i < SUMS; ++i) sum[BLOCK][i] += part[i];
    }
  }

  template <class Epilogue>
  __device__ __forceinline__ void multiply_all(
      unsigned char* workspace, unsigned* is_last, const Operands& operands, const Epilogue& epilogue) {
    if (CONSUMERS == 2 && warpgroup == 1) arrive_as_warp(barriers.turn);   // the first turn is warpgroup 0's
    Fragment one, two;
    float x[STEPS_TF32][4];
    await_stage();
    reader.read(x, stage() + REGISTER_AT, 0);
    if constexpr (AHEAD) one.split(x);
#pragma unroll 1
    for (WorkList list; list.is_open(); list.advance()) {
#pragma unroll
      for (unsigned i = 0; i < BLOCKS_R * SUMS; ++i) sum[i / SUMS][i % SUMS] = 0;
#pragma unroll 1
      for (unsigned left = list.units(); left > 0; --left) {
        step<0>(one, two, x);
        if constexpr (BLOCKS_R == 2) step<BLOCKS_R - 1>(AHEAD ? two : one, one, x);
        else if constexpr (AHEAD) step<0>(two, one, x);
      }
      const Work work = list.work();
      if (SPLIT_K == 1 || work.parts == 1) finish(sum, work, operands, epilogue);
      else finish_part(sum, work, warpgroup, workspace, is_last, operands, epilogue);
    }
  }
};

// All that a block has to do.
template <class Epilogue>
__device__ __forceinline__ void run_roles(
    const Operands& operands, unsigned char* workspace, const Epilogue& epilogue) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barrier_words[Barriers::COUNT];
  __shared__ unsigned is_last[2];
  const unsigned ring = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const Barriers barriers(shared_address(barrier_words));
  if (threadIdx.x == 0) barriers.initialize();
  __syncthreads();
  if (threadIdx.x < 128 * CONSUMERS) {
    if constexpr (REGISTERS_MOVE) take_registers<CONSUMER_REGISTERS>();
    Consumer(ring, barriers).multiply_all(workspace, is_last, operands, epilogue);
  } else {
    if constexpr (REGISTERS_MOVE) release_registers<PRODUCER_REGISTERS>();
    if (PRODUCTS == 1 || threadIdx.x >= 128 * (CONSUMERS + 1)) load_all(operands, ring, barriers);
    else convert_all(ring, barriers);
  }
}
