// One evaluation of one compiled kernel, in a process of its own.
//
//   kernel verify GX GY GZ BX BY BZ SHARED ARGUMENT...
//     two launches: threads by rank, arrays at the end of their pages; then threads shuffled, arrays at the start.
//     Written arrays go to DESTINATION.0 and DESTINATION.1.  stdout: seconds of CPU time of each launch.
//   kernel sample GX GY GZ BX BY BZ SHARED ARGUMENT...
//     a warm-up launch, then it answers lines on stdin, "COUNT MIN_SECONDS EVICTED_BYTES", with COUNT lines: seconds of
//     CPU time of one launch. With EVICTED_BYTES > 0 each sample is one launch after a walk over so many bytes; else
//     launches are repeated inside a sample until MIN_SECONDS are reached. Ends with its input.
//   ARGUMENT: `scalar VALUE`, `array NAME BYTES const|mutable SOURCE DESTINATION` ("" for none), or `workspace BYTES`,
//     zero before the first launch and then as the launch before left it, also in `verify`
//
// Exit: 0; 70 for a fault (out of bounds, signal), 71 for threads that wait for ever, 64 for a call that makes no
// sense; stderr has the sentence.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "arrays.h"
#include "block.h"

namespace {

constexpr int max_arguments = 32;

union Value {
  void* p;
  float f;
  double d;
  int i;
  unsigned u;
  long long l;
};

struct Call {
  dim3 grid, block;
  size_t shared_bytes = 0;
  Array arrays[max_arguments];
  Value values[max_arguments];
  void* pointers[max_arguments];
  int count = 0;
};

Call call;

[[noreturn]] void refuse(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(exit_usage);
}

// The words of the command line, one after the other.
struct Words {
  char** next;
  char** end;
  const char* text() { return next < end ? *next++ : (refuse("the command line ends early"), nullptr); }
  long long number() { return atoll(text()); }
  unsigned size() { return static_cast<unsigned>(number()); }
};

void read_scalar(char letter, const char* text, Value& value) {
  switch (letter) {
    case 'f': value.f = strtof(text, nullptr); break;
    case 'd': value.d = strtod(text, nullptr); break;
    case 'i': value.i = static_cast<int>(strtod(text, nullptr)); break;
    case 'u': value.u = static_cast<unsigned>(strtod(text, nullptr)); break;
    case 'l': value.l = static_cast<long long>(strtod(text, nullptr)); break;
    default: refuse("the kernel takes a pointer where the declaration has a scalar");
  }
}

void read_arguments(Words& words) {
  const char* const signature = host_signature();
  for (; words.next < words.end; ++call.count) {
    const int i = call.count;
    if (i == max_arguments || !signature[i]) refuse("the kernel takes fewer arguments than the declaration has");
    call.pointers[i] = &call.values[i];
    const char* const kind = words.text();
    if (!strcmp(kind, "scalar")) {
      read_scalar(signature[i], words.text(), call.values[i]);
      continue;
    }
    if (signature[i] != 'p') refuse("the kernel takes a scalar where the declaration has an array");
    Array& array = call.arrays[i];
    array.is_workspace = !strcmp(kind, "workspace");
    if (array.is_workspace) {
      array.name = kind;
      array.bytes = static_cast<size_t>(words.number());
      array.writable = true;
      continue;
    }
    array.name = words.text();
    array.bytes = static_cast<size_t>(words.number());
    array.writable = !strcmp(words.text(), "mutable");
    array.source = words.text();
    array.destination = words.text();
  }
  if (signature[call.count]) refuse("the kernel takes more arguments than the declaration has");
}

void place_arrays(Placement placement) {
  for (int i = 0; i < call.count; ++i) {
    Array& array = call.arrays[i];
    if (!array.name) continue;
    array.place(placement);
    array.fill();
    array.protect();
    call.values[i].p = array.data;
  }
  memset(host_dynamic_shared, 0xff, max_dynamic_shared_bytes);
}

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double timed(long launches) {
  const double start = cpu_seconds();
  for (long i = 0; i < launches; ++i) launch(call.grid, call.pointers);
  return (cpu_seconds() - start) / static_cast<double>(launches);
}

bool is_out_of_bounds() {
  bool found = false;
  for (Array& array : call.arrays) found |= array.data && array.overrun_is_reported();
  for (size_t i = call.shared_bytes; i < max_dynamic_shared_bytes; ++i)
    if (static_cast<unsigned char>(host_dynamic_shared[i]) != 0xff) {
      fprintf(stderr, "out of bounds: dynamic shared memory was written %zu bytes past its end\n",
              i - call.shared_bytes);
      return true;
    }
  return found;
}

void verify() {
  for (int pass = 0; pass < 2; ++pass) {
    place_arrays(pass ? Placement::at_start : Placement::at_end);
    prepare_block(call.block, pass == 1);
    printf("%.9f\n", timed(1));
    if (is_out_of_bounds()) exit(exit_fault);
    for (Array& array : call.arrays) {
      if (array.data && *array.destination) array.save(pass ? ".1" : ".0");
      if (array.data && array.is_workspace) array.keep();
      array.unmap();
    }
  }
}

// Walks over memory of its own, writing, so that nothing of the kernel's is left in a cache of that size.
void evict(size_t bytes) {
  static char* const memory = static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) refuse("no memory to walk over");
  for (size_t i = 0; i < bytes; i += 64) reinterpret_cast<volatile char*>(memory)[i] += 1;
}

void sample(long count, double min_seconds, size_t evicted_bytes) {
  static double one = timed(1);
  const bool is_short = !evicted_bytes && one < min_seconds;
  const long launches = is_short ? static_cast<long>(min_seconds / (one > 1e-8 ? one : 1e-8)) + 1 : 1;
  for (long i = 0; i < count; ++i) {
    if (evicted_bytes) evict(evicted_bytes);
    printf("%.12f\n", timed(launches));
  }
  fflush(stdout);
}

void answer_samples() {
  place_arrays(Placement::at_start);
  prepare_block(call.block, false);
  timed(1);  // pages of the stacks and of the outputs are touched for the first time
  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    long count = 0;
    double min_seconds = 0;
    size_t evicted_bytes = 0;
    if (sscanf(line, "%ld %lf %zu", &count, &min_seconds, &evicted_bytes) != 3) refuse("not a question");
    sample(count, min_seconds, evicted_bytes);
  }
}

#if !defined(HOST_ASAN) && !defined(HOST_TSAN)
void report_fault(int number, siginfo_t* information, void*) {
  const char* const address = static_cast<const char*>(information->si_addr);
  bool explained = false;
  for (const Array& array : call.arrays) explained = explained || (array.data && array.fault_is_reported(address));
  if (!explained && number == SIGSEGV && is_in_stacks(address)) {
    fprintf(stderr, "stack overflow: a thread's local arrays are too large\n");
  } else if (!explained) {
    fprintf(stderr, "the kernel was ended by signal %d (%s), address %p\n", number, strsignal(number),
            static_cast<const void*>(address));
  }
  if (host_thread)
    fprintf(stderr, "thread (%u, %u, %u) of block (%u, %u, %u)\n", host_thread->index.x, host_thread->index.y,
            host_thread->index.z, blockIdx.x, blockIdx.y, blockIdx.z);
  _exit(exit_fault);
}

// On a stack of its own: the faulting thread's may be full.
void explain_faults() {
  static char memory[64 * 1024];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof memory;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = report_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  for (int number : numbers) sigaction(number, &action, nullptr);
}
#else
void explain_faults() {}  // the sanitizers do
#endif

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed tuner leaves no endless loop behind
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  explain_faults();
  Words words = {argv + 1, argv + argc};
  const bool is_sample = !strcmp(words.text(), "sample");
  unsigned sizes[6];
  for (unsigned& size : sizes) size = words.size();
  call.grid = {sizes[0], sizes[1], sizes[2]};
  call.block = {sizes[3], sizes[4], sizes[5]};
  const unsigned long long threads = 1ull * sizes[3] * sizes[4] * sizes[5];
  if (!threads || threads > max_threads_per_block) refuse("a block has 1 to 1024 threads");
  call.shared_bytes = static_cast<size_t>(words.number());
  if (call.shared_bytes > max_dynamic_shared_bytes) refuse("dynamic shared memory is limited to 48 KiB");
  read_arguments(words);
  is_sample ? answer_samples() : verify();
  fflush(stdout);
  _exit(0);
}
