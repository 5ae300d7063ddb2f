// A launch on the host: every block in turn, every thread of a block a fiber.
#pragma once
#include "cuda_host.h"

static constexpr unsigned max_threads_per_block = 1024;
static constexpr size_t max_dynamic_shared_bytes = 48 * 1024;

enum ExitCode { exit_usage = 64, exit_fault = 70, exit_barrier = 71 };

// The kernel's, made by HOST_ENTRY.
extern "C" void host_run_thread(void** values);
extern "C" const char* host_signature();

// Sets up fibers for blocks of this size. `shuffled` gives the threads of a block a random order of execution, always
// the same; else they run by rank.
void prepare_block(dim3 block, bool shuffled);

// Runs the whole grid. Ends the process with `exit_barrier` and a sentence on stderr where threads wait for ever.
void launch(dim3 grid, void** values);

// True where the address lies in a fiber's stack: a stack overflow when it faulted.
bool is_in_stacks(const void* address);
