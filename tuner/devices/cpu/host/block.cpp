// The scheduler: threads of one block, the block barrier, warp exchanges. One OS thread, cooperative.
#include "block.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fiber.h"

extern "C" {
HostThread* host_thread;
bool host_none_waited;  // if so, the ends of threads are not noted yet
uint3 blockIdx;
dim3 blockDim, gridDim;
alignas(4096) char host_dynamic_shared[max_dynamic_shared_bytes + 4096];
}

namespace {

#if defined(HOST_TSAN)
constexpr bool shares_fibers = false;  // the race detector knows threads by their fibers: each has its own
#else
constexpr bool shares_fibers = true;
#endif
#if defined(HOST_ASAN) || defined(HOST_TSAN)
constexpr size_t stack_bytes = 512 * 1024;  // red zones and instrumented frames take more
#else
constexpr size_t stack_bytes = 192 * 1024;
#endif
constexpr size_t guard_bytes = 64 * 1024;  // -fstack-clash-protection steps so far at most, on aarch64
// Stacks lie whole pages apart: without an offset their hot ends would all fall into one set of the L1 cache.
constexpr size_t colour_bytes = 5 * 64, colours = 64;

struct Thread : HostThread {
  Fiber* fiber = nullptr;       // where it waits or has waited; null before, and when it has ended
  unsigned position;            // in the order of execution
  unsigned mask, votes;         // of the warp exchange it waits in or has left
  unsigned long long posted, received;
  int source_lane, line;
};

// A warp's threads by lane: those that have not ended, those that wait in an exchange, those at an __activemask.
struct Warp {
  unsigned alive, waiting, gathering;
};

// Threads by position, a bit each.
using Positions = uint64_t[max_threads_per_block / 64];

Thread threads[max_threads_per_block];             // by rank
HostThread* order[max_threads_per_block];          // by position
Warp warps[max_threads_per_block / 32];
Positions runnable, at_barrier;
Fiber origin;                                      // where `launch` itself runs
Fiber fibers[max_threads_per_block];
Fiber* running;                                    // the fiber that runs, where its thread has not waited
Fiber* idle[max_threads_per_block];                // fibers that run no thread; the last one was left last
unsigned fiber_count, idle_count;
char* stacks;
unsigned thread_count, alive, waiting;             // `waiting`: at the block barrier
int barrier_line;
const HostEntry* kernel;
void** kernel_values;
char barrier_phase[2], block_start, block_end;     // addresses only, for the race detector
unsigned barrier_round;

uint64_t ones(unsigned count) { return count < 64 ? (uint64_t(1) << count) - 1 : ~uint64_t(0); }
void set(Positions& positions, unsigned i) { positions[i / 64] |= uint64_t(1) << i % 64; }
void clear(Positions& positions, unsigned i) { positions[i / 64] &= ~(uint64_t(1) << i % 64); }

[[noreturn]] void die(const char* what, const Thread& thread) {
  fprintf(stderr, "%s: thread (%u, %u, %u) of block (%u, %u, %u), line %d\n", what, thread.index.x, thread.index.y,
          thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z, thread.line);
  _exit(exit_barrier);
}

Thread* current() { return static_cast<Thread*>(host_thread); }
Thread* thread_at(unsigned position) { return static_cast<Thread*>(order[position]); }

// The next in order that can run, starting after `position`; null where none can.
Thread* next_runnable(unsigned position) {
  const unsigned words = (thread_count + 63) / 64;
  unsigned word = position / 64;
  uint64_t bits = runnable[word] & ~uint64_t(1) << position % 64;
  for (unsigned step = 0; !bits && step < words; ++step) {
    if (++word == words) word = 0;
    bits = runnable[word];
  }
  return bits ? thread_at(word * 64 + unsigned(__builtin_ctzll(bits))) : nullptr;
}

// Lets the lanes go on that wait at the same __activemask, in each warp; false where none does.
bool release_gathered() {
  bool is_any = false;
  for (unsigned number = 0; number * 32 < thread_count; ++number) {
    Thread* const lane = threads + number * 32;
    unsigned together = 0;
    for (unsigned rest = warps[number].gathering; rest; rest &= rest - 1) {
      const unsigned i = unsigned(__builtin_ctz(rest));
      if (!together || lane[i].line == lane[__builtin_ctz(together)].line) together |= 1u << i;
    }
    for (unsigned rest = together; rest; rest &= rest - 1) {
      lane[__builtin_ctz(rest)].votes = together;
      set(runnable, lane[__builtin_ctz(rest)].position);
      is_any = true;
    }
    warps[number].gathering &= ~together;
  }
  return is_any;
}

// The next one in order; where none can go on, those at an __activemask can.
__forceinline__ Thread* next_after_position(unsigned position) {
  Thread* const next = next_runnable(position);
  return next || !release_gathered() ? next : next_runnable(position);
}

[[noreturn]] void run_threads();

// For a thread that starts while others wait on theirs: one that is idle, or a new one.
__noinline__ Fiber* fiber_for(const Thread& thread) {
  if (shares_fibers && idle_count) return idle[--idle_count];
  const size_t number = shares_fibers ? fiber_count++ : thread.rank;
  Fiber& fiber = fibers[number];
  if (fiber.stack) return &fiber;
  fiber.stack = stacks + number * stack_bytes;
  fiber.stack_bytes = stack_bytes;
  mprotect(fiber.stack, guard_bytes, PROT_NONE);
  prepare(fiber, run_threads, number % colours * colour_bytes);
  return &fiber;
}

void note_end(const Thread& thread) {
  clear(runnable, thread.position);
  warps[thread.rank / 32].alive &= ~(1u << thread.rank % 32);
  --alive;
}

// The block's first wait: the threads before the running one have ended.
__noinline__ void note_ends() {
  host_none_waited = false;
  for (unsigned i = 0; i < current()->position; ++i) note_end(*thread_at(i));
}

// The running thread, which is about to wait or asks who is alive.
Thread* noted_current() {
  if (host_none_waited) note_ends();
  return current();
}

// Leaves the running fiber for the thread's. Inlined, as each call more is stack more of every thread that waits.
__forceinline__ void resume(Fiber& from, Thread* to) {
  if (!to->fiber) running = fiber_for(*to);
  host_thread = to;
  switch_fiber(from, to->fiber ? *to->fiber : *running);
}

__forceinline__ void wait(Thread* me, const char* deadlock) {
  Thread* next = next_after_position(me->position);
  if (!next) die(deadlock, *me);
  if (!me->fiber) me->fiber = running;
  if (next != me) resume(*me->fiber, next);
}

void release_barrier() {
  waiting = 0;
  ++barrier_round;
  for (unsigned i = 0; i * 64 < thread_count; ++i) runnable[i] |= at_barrier[i], at_barrier[i] = 0;
}

// Completes the exchange of `mask` where all its living lanes wait in it: each gets its source's value and all votes.
void complete_exchange(unsigned number, unsigned mask) {
  Warp& warp = warps[number];
  Thread* const lane = threads + number * 32;
  const unsigned expected = mask & warp.alive;
  if (expected & ~warp.waiting) return;
  unsigned votes = 0;
  for (unsigned rest = expected; rest; rest &= rest - 1) {
    const unsigned i = unsigned(__builtin_ctz(rest));
    if (lane[i].mask != mask) return;
    votes |= unsigned(lane[i].posted != 0) << i;
  }
  for (unsigned rest = expected; rest; rest &= rest - 1) {
    Thread& receiver = lane[__builtin_ctz(rest)];
    const unsigned source = unsigned(receiver.source_lane) % 32;
    receiver.received = expected >> source & 1 ? lane[source].posted : ~0ull;
    receiver.votes = votes;
    set(runnable, receiver.position);
  }
  warp.waiting &= ~expected;
}

void exchange(unsigned mask, unsigned long long bits, int source_lane, int line) {
  Thread* me = noted_current();
  const unsigned warp = me->rank / 32, lane = 1u << me->rank % 32;
  me->line = line;
  if (!(mask & lane)) die("a warp exchange whose mask lacks the caller", *me);
  me->mask = mask, me->posted = bits, me->source_lane = source_lane;
  clear(runnable, me->position);
  warps[warp].waiting |= lane;
  release(&warps[warp]);
  complete_exchange(warp, mask);
  wait(me, "deadlock in a warp exchange");
  acquire(&warps[warp]);
}

// Returns the next thread to run after one that has ended; null where the block has ended.
Thread* next_after(const Thread& ended) {
  note_end(ended);
  const unsigned number = ended.rank / 32;
  if (waiting && waiting == alive) release_barrier();  // a barrier waits for the threads that have not ended
  for (unsigned lanes = warps[number].waiting; lanes; lanes &= lanes - 1)
    complete_exchange(number, threads[number * 32 + unsigned(__builtin_ctz(lanes))].mask);
  Thread* const next = next_after_position(ended.position);
  for (unsigned i = 0; !next && i < thread_count; ++i)
    if (thread_at(i)->fiber) die("deadlock: a thread waits for others, which have ended", *thread_at(i));
  return next;
}

// What a fiber runs: a thread and, when that has ended, the next, so that threads that never wait are a loop on one
// stack. A thread that waits keeps its fiber. Where such a one is next, or the block has ended, this fiber is idle
// until `resume` needs it.
[[noreturn]] void run_threads() {
  entered(origin);
  for (;;) {
    acquire(&block_start);
    kernel->run_threads(kernel_values, order + current()->position, order + thread_count);
    release(&block_end);
    Thread& me = *current();
    if (me.fiber) running = me.fiber, me.fiber = nullptr;
    Thread* const next = host_none_waited ? nullptr : next_after(me);
    if (shares_fibers && next && !next->fiber) {
      host_thread = next;
      continue;
    }
    Fiber& mine = *running;
    if (shares_fibers) idle[idle_count++] = &mine;
    next ? resume(mine, next) : switch_fiber(mine, origin);
  }
}

void run_block(uint3 index) {
  blockIdx = index;
  alive = thread_count, waiting = 0, host_none_waited = shares_fibers;
  for (unsigned i = 0; i < thread_count; i += 64) runnable[i / 64] = ones(thread_count - i);
  for (unsigned i = 0; i < thread_count; i += 32) warps[i / 32] = {static_cast<unsigned>(ones(thread_count - i)), 0, 0};
  release(&block_start);
  resume(origin, thread_at(0));
  acquire(&block_end);
}

}  // namespace

void host_block_barrier(int line) {
  Thread* me = noted_current();
  me->line = line;
  if (!waiting) barrier_line = line;
  if (line != barrier_line) {
    fprintf(stderr, "others wait at the barrier of line %d\n", barrier_line);
    die("divergent block barrier", *me);
  }
  char* const phase = &barrier_phase[barrier_round % 2];
  release(phase);
  clear(runnable, me->position);
  set(at_barrier, me->position);
  if (++waiting == alive) release_barrier();
  wait(me, "deadlock at a block barrier");
  acquire(phase);
}

int host_block_count(int predicate, int line) {
  static int count = 0;
  if (predicate) __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
  host_block_barrier(line);
  const int result = __atomic_load_n(&count, __ATOMIC_RELAXED);
  host_block_barrier(line);   // all have read it
  __atomic_store_n(&count, 0, __ATOMIC_RELAXED);
  host_block_barrier(line);   // before the next call
  return result;
}

unsigned long long host_warp_exchange(unsigned mask, unsigned long long bits, int source_lane, int line) {
  exchange(mask, bits, source_lane, line);
  return current()->received;
}

unsigned host_warp_vote(unsigned mask, int predicate, int line) {
  exchange(mask, predicate != 0, 0, line);
  return current()->votes;
}

// They are known when no other thread can go on: the lanes of the warp that wait here by then.
unsigned host_active_lanes(int line) {
  Thread* me = noted_current();
  me->line = line;
  clear(runnable, me->position);
  warps[me->rank / 32].gathering |= 1u << me->rank % 32;
  wait(me, "deadlock at __activemask");
  return me->votes;
}

void prepare_block(dim3 block, bool shuffled) {
  blockDim = block;
  thread_count = block.x * block.y * block.z;
  if (!stacks) {
    stacks = static_cast<char*>(mmap(nullptr, stack_bytes * max_threads_per_block, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) perror("no memory for the threads' stacks"), exit(exit_usage);
  }
  for (unsigned i = 0; i < thread_count; ++i) {
    threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    threads[i].rank = i;
    order[i] = &threads[i];
  }
  uint64_t random = 88172645463325252ull;  // Marsaglia's xorshift (2003), with its published start
  for (unsigned i = thread_count; shuffled && i > 1; --i) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    HostThread*& other = order[random % i];
    HostThread* const last = order[i - 1];
    order[i - 1] = other, other = last;
  }
  for (unsigned i = 0; i < thread_count; ++i) thread_at(i)->position = i;
#if defined(HOST_TSAN)
  origin.tsan = __tsan_get_current_fiber();
#endif
}

unsigned host_size_at_launch;

void launch(const HostEntry& entry, dim3 grid, void** values, unsigned first, unsigned step) {
  gridDim = grid;
  kernel = &entry;
  kernel_values = values;
  if (host_size_place >= 0) host_size_at_launch = *static_cast<const unsigned*>(values[host_size_place]);
  const uint64_t plane = uint64_t(grid.x) * grid.y;
  for (uint64_t i = first; i < plane * grid.z; i += step)
    run_block({unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / plane)});
}

bool is_in_stacks(const void* address) {
  const char* const at = static_cast<const char*>(address);
  return stacks && at >= stacks && at < stacks + stack_bytes * max_threads_per_block;
}

void host_wrong_texture(cudaTextureObject_t texture, int rank) {
  if (texture->rank == rank)
    fprintf(stderr, "%s is read as texels of another type than its dtype and channels\n", texture->name);
  else
    fprintf(stderr, "%s is declared as a texture for tex%dD%s, and read by another function\n", texture->name,
            texture->rank ? texture->rank : 1, texture->rank ? "" : "fetch");
  _exit(exit_fault);
}
