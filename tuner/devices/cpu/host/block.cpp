// The scheduler: fibers of one block, the block barrier, warp exchanges. One OS thread, cooperative.
#include "block.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fiber.h"

extern "C" {
HostThread* host_thread;
uint3 blockIdx;
dim3 blockDim, gridDim;
alignas(4096) char host_dynamic_shared[max_dynamic_shared_bytes + 4096];
}

namespace {

#if defined(HOST_ASAN) || defined(HOST_TSAN)
constexpr size_t stack_bytes = 512 * 1024;  // red zones and instrumented frames take more
#else
constexpr size_t stack_bytes = 192 * 1024;
#endif
constexpr size_t guard_bytes = 64 * 1024;  // -fstack-clash-protection steps so far at most, on aarch64
// Stacks lie whole pages apart: without an offset their hot ends would all fall into one set of the L1 cache.
constexpr size_t colour_bytes = 5 * 64, colours = 64;

enum State : unsigned char { runnable, at_barrier, at_warp, ended };

struct Thread : HostThread {
  Fiber fiber;
  unsigned position;            // in the order of execution
  unsigned mask, votes;         // of the warp exchange it waits in or has left
  unsigned long long posted, received;
  int source_lane, line;
};

Thread threads[max_threads_per_block];             // by rank
Thread* order[max_threads_per_block];              // by position
unsigned char states[max_threads_per_block];       // by position: the barrier's release is one pass over bytes
Fiber origin;                                      // where `launch` itself runs
char* stacks;
unsigned thread_count, alive, waiting;             // `waiting`: at the block barrier
int barrier_line;
void** kernel_values;
char barrier_phase[2], block_start, block_end;     // addresses only, for the race detector
unsigned barrier_round;

[[noreturn]] void die(const char* what, const Thread& thread) {
  fprintf(stderr, "%s: thread (%u, %u, %u) of block (%u, %u, %u), line %d\n", what, thread.index.x, thread.index.y,
          thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z, thread.line);
  _exit(exit_barrier);
}

Thread* current() { return static_cast<Thread*>(host_thread); }

// The next in order that can run, starting after `position`; null where none can.
Thread* next_runnable(unsigned position) {
  for (unsigned step = 0; step < thread_count; ++step) {
    if (++position == thread_count) position = 0;
    if (states[position] == runnable) return order[position];
  }
  return nullptr;
}

void resume(Thread* from, Thread* to, bool ends) {
  host_thread = to;
  switch_fiber(from->fiber, to->fiber, ends);
}

void wait_as(State state) {
  Thread* me = current();
  Thread* next = next_runnable(me->position);
  if (!next) die(state == at_barrier ? "deadlock at a block barrier" : "deadlock in a warp exchange", *me);
  if (next != me) resume(me, next, false);
}

void release_barrier() {
  waiting = 0;
  ++barrier_round;
  for (unsigned i = 0; i < thread_count; ++i)
    if (states[i] == at_barrier) states[i] = runnable;
}

unsigned lanes_alive(unsigned warp) {
  unsigned lanes = 0;
  for (unsigned rank = warp * 32; rank < warp * 32 + 32 && rank < thread_count; ++rank)
    lanes |= unsigned(states[threads[rank].position] != ended) << rank % 32;
  return lanes;
}

// Completes the exchange of `mask` where all its living lanes wait in it: each gets its source's value and all votes.
void complete_exchange(unsigned warp, unsigned mask) {
  Thread* const lane = threads + warp * 32;
  const unsigned expected = mask & lanes_alive(warp);
  unsigned votes = 0;
  for (unsigned rest = expected; rest; rest &= rest - 1) {
    const unsigned i = unsigned(__builtin_ctz(rest));
    if (states[lane[i].position] != at_warp || lane[i].mask != mask) return;
    votes |= unsigned(lane[i].posted != 0) << i;
  }
  for (unsigned rest = expected; rest; rest &= rest - 1) {
    Thread& receiver = lane[__builtin_ctz(rest)];
    const unsigned source = unsigned(receiver.source_lane) % 32;
    receiver.received = expected >> source & 1 ? lane[source].posted : ~0ull;
    receiver.votes = votes;
    states[receiver.position] = runnable;
  }
}

void exchange(unsigned mask, unsigned long long bits, int source_lane, int line) {
  Thread* me = current();
  me->line = line;
  if (!(mask >> me->rank % 32 & 1)) die("a warp exchange whose mask lacks the caller", *me);
  me->mask = mask, me->posted = bits, me->source_lane = source_lane;
  states[me->position] = at_warp;
  Thread* const first = threads + me->rank / 32 * 32;
  release(first);
  complete_exchange(me->rank / 32, mask);
  wait_as(at_warp);
  acquire(first);
}

// What a fiber runs: the thread, then whoever is next; the last one goes back to `launch`.
[[noreturn]] void run_thread() {
  entered(origin);
  acquire(&block_start);
  host_run_thread(kernel_values);
  Thread* me = current();
  release(&block_end);
  states[me->position] = ended;
  --alive;
  if (waiting && waiting == alive) release_barrier();  // a barrier waits for the threads that have not ended
  for (unsigned lanes = lanes_alive(me->rank / 32); lanes; lanes &= lanes - 1) {
    const unsigned rank = me->rank / 32 * 32 + unsigned(__builtin_ctz(lanes));
    if (states[threads[rank].position] == at_warp) complete_exchange(me->rank / 32, threads[rank].mask);
  }
  Thread* next = next_runnable(me->position);
  if (next) resume(me, next, true);
  for (unsigned i = 0; alive && i < thread_count; ++i)
    if (states[i] != ended) die("deadlock: a thread waits for others, which have ended", *order[i]);
  switch_fiber(me->fiber, origin, true);
  abort();  // nobody switches to a thread that has ended
}

void run_block(uint3 index) {
  blockIdx = index;
  alive = thread_count, waiting = 0;
  memset(states, runnable, thread_count);
  for (unsigned i = 0; i < thread_count; ++i) prepare(order[i]->fiber, run_thread, i % colours * colour_bytes);
  release(&block_start);
  host_thread = order[0];
  switch_fiber(origin, order[0]->fiber, false);
  acquire(&block_end);
}

}  // namespace

void host_block_barrier(int line) {
  Thread* me = current();
  me->line = line;
  if (!waiting) barrier_line = line;
  if (line != barrier_line) {
    fprintf(stderr, "others wait at the barrier of line %d\n", barrier_line);
    die("divergent block barrier", *me);
  }
  char* const phase = &barrier_phase[barrier_round % 2];
  release(phase);
  states[me->position] = at_barrier;
  if (++waiting == alive) release_barrier();
  wait_as(at_barrier);
  acquire(phase);
}

unsigned long long host_warp_exchange(unsigned mask, unsigned long long bits, int source_lane, int line) {
  exchange(mask, bits, source_lane, line);
  return current()->received;
}

unsigned host_warp_vote(unsigned mask, int predicate, int line) {
  exchange(mask, predicate != 0, 0, line);
  return current()->votes;
}

unsigned host_active_lanes() { return lanes_alive(current()->rank / 32); }

void prepare_block(dim3 block, bool shuffled) {
  blockDim = block;
  thread_count = block.x * block.y * block.z;
  if (!stacks) {
    stacks = static_cast<char*>(mmap(nullptr, stack_bytes * max_threads_per_block, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) perror("no memory for the threads' stacks"), exit(exit_usage);
    for (unsigned i = 0; i < thread_count; ++i) mprotect(stacks + i * stack_bytes, guard_bytes, PROT_NONE);
  }
  for (unsigned i = 0; i < thread_count; ++i) {
    threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    threads[i].rank = i;
    threads[i].fiber.stack = stacks + i * stack_bytes;
    threads[i].fiber.stack_bytes = stack_bytes;
    order[i] = &threads[i];
  }
  uint64_t random = 88172645463325252ull;  // Marsaglia's xorshift (2003), with its published start
  for (unsigned i = thread_count; shuffled && i > 1; --i) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    Thread*& other = order[random % i];
    Thread* const last = order[i - 1];
    order[i - 1] = other, other = last;
  }
  for (unsigned i = 0; i < thread_count; ++i) order[i]->position = i;
#if defined(HOST_TSAN)
  origin.tsan = __tsan_get_current_fiber();
#endif
}

void launch(dim3 grid, void** values) {
  gridDim = grid;
  kernel_values = values;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) run_block({x, y, z});
}

bool is_in_stacks(const void* address) {
  const char* const at = static_cast<const char*>(address);
  return stacks && at >= stacks && at < stacks + stack_bytes * max_threads_per_block;
}
