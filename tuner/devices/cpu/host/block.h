// A launch on the host: every block in turn, its threads in order, each until it waits or ends.
#pragma once
#include "cuda_host.h"

static constexpr unsigned max_threads_per_block = 1024;
static constexpr size_t max_dynamic_shared_bytes = 48 * 1024;

enum ExitCode { exit_usage = 64, exit_fault = 70, exit_barrier = 71 };

// Sets up fibers for blocks of this size. `shuffled` gives the threads of a block a random order of execution, always
// the same; else they run by rank.
void prepare_block(dim3 block, bool shuffled);

// Runs the entry's grid, or of its blocks every `step`-th from `first` on. Ends the process with `exit_barrier` and a sentence
// on stderr where threads wait for ever.
void launch(const HostEntry& entry, dim3 grid, void** values, unsigned first = 0, unsigned step = 1);

// True where the address lies in a fiber's stack: a stack overflow when it faulted.
bool is_in_stacks(const void* address);
