// One evaluation of one compiled kernel, in a process of its own.
//
//   kernel verify PROCESSES BYTE SECONDS GEOMETRY... CONSTANT... ARGUMENT...
//     two runs: threads by rank, arrays at the end of their pages; then threads shuffled, arrays at the start, and those
//     that take finite numbers filled with BYTE before. Written arrays go to DESTINATION.0 and DESTINATION.1. For SECONDS
//     of CPU time, at most 64 in all, further runs like the second, on NaN: one that differs from it takes its place.
//     Each of PROCESSES runs its part of the blocks; more than one only where no block reads what another one of the same
//     launch writes.
//   kernel sample GEOMETRY... CONSTANT... ARGUMENT...
//     answers lines on stdin, until that ends. "load BYTE..." (see `load`) changes inputs and numbers where they lie, and
//     has no answer. "fresh": one run on poisoned outputs, which go to DESTINATION.0; its seconds of CPU time.
//     "sample COUNT MIN_SECONDS EVICTED_BYTES": COUNT lines with the seconds of one run, and "same" or "other": what the
//     last of these runs has left is what the fresh one did, or is in DESTINATION.1. With EVICTED_BYTES > 0 each sample
//     is one run after a walk over so many bytes; else runs of less than a fourth of that are repeated inside a sample until MIN_SECONDS are reached.
//   GEOMETRY: `GX GY GZ BX BY BZ SHARED` for each launch of the variant, which a run makes in order
//   CONSTANT: `constant NAME BYTES SOURCE`, what the array of that name in constant memory holds
//   ARGUMENT: `scalar VALUE`, `array NAME BYTES const|mutable|finite SOURCE DESTINATION` ("" for none; SOURCE `=NAME` for
//     the memory of an array before this one), `workspace BYTES`,
//     zero before the first run and then as the run before left it, also in `verify`, or
//     `texture NAME BYTES SOURCE KIND ITEM_BYTES CHANNELS FILTER ADDRESS NORMALIZED RANK X Y Z` (host_texture.h)
//
// Exit: 0; 70 for a fault (out of bounds, signal), 71 for threads that wait for ever, 64 for a call that makes no
// sense; stderr has the sentence.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arrays.h"
#include "block.h"
#include "confined.h"

namespace {

constexpr int max_arguments = 32, max_launches = 16, max_runs = 64;

union Value {
  void* p;
  float f;
  double d;
  unsigned long long i;  // of any width and sign: the kernel reads the low bytes
};

struct Geometry {
  dim3 grid, block;
};

struct Call {
  Geometry launches[max_launches];
  size_t shared_bytes = 0;  // dynamic, the most of any launch
  Array arrays[max_arguments];
  HostTexture textures[max_arguments];
  Value values[max_arguments];
  void* pointers[max_arguments];
  int count = 0;
  unsigned processes = 1;  // of a launch
  unsigned char finite = 0xff;
  double seconds = 0;      // of further runs
  double one = 0;          // seconds of the fastest launch with inputs that were new
};

Call call;
FILE* answers;  // what standard output was: the kernel's goes to the log

// The log keeps so much of what kernels print; they go on printing to nowhere.
constexpr size_t max_printed_bytes = 16 << 10;

ssize_t print_to_log(void*, const char* text, size_t bytes) {
  static size_t left = max_printed_bytes;
  const size_t kept = bytes < left ? bytes : left;
  left -= kept;
  for (size_t done = 0; done < kept;) {
    const ssize_t written = write(STDERR_FILENO, text + done, kept - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return static_cast<ssize_t>(bytes);
}

void part_answers_from_prints() {
  answers = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const cookie_io_functions_t functions = {nullptr, print_to_log, nullptr, nullptr};
  FILE* const log = fopencookie(nullptr, "w", functions);
  if (!answers || !log) perror("no channel for the answers"), exit(exit_usage);
  setvbuf(log, nullptr, _IOLBF, BUFSIZ);
  stdout = log;
}

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
    case 'i': value.i = strtoull(text, nullptr, 10); break;  // of a negative number its two's complement
    default: refuse("the kernel takes a pointer where the declaration has a scalar");
  }
}

void read_geometry(Words& words, Geometry& geometry) {
  unsigned sizes[6];
  for (unsigned& size : sizes) size = words.size();
  geometry = {{sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}};
  const unsigned long long threads = 1ull * sizes[3] * sizes[4] * sizes[5];
  if (!threads || threads > max_threads_per_block) refuse("a block has 1 to 1024 threads");
  const size_t shared_bytes = static_cast<size_t>(words.number());
  if (shared_bytes > max_dynamic_shared_bytes) refuse("dynamic shared memory is limited to 48 KiB");
  if (shared_bytes > call.shared_bytes) call.shared_bytes = shared_bytes;
}

void read_launches(Words& words) {
  if (host_entry_count > max_launches) refuse("a variant has at most 16 launches");
  for (int i = 0; i < host_entry_count; ++i) {
    read_geometry(words, call.launches[i]);
    if (strcmp(host_entries[i].signature, host_entries[host_entry_count - 1].signature))
      refuse("the launches of a variant must have the same parameters");
  }
}

void fill_constant(const char* name, size_t bytes, const char* path) {
  const HostConstant* constant = host_constants;
  while (constant->name && strcmp(constant->name, name)) ++constant;
  if (!constant->name || bytes > constant->bytes) {
    fprintf(stderr, "%s: the array in constant memory has fewer than the %zu bytes of the declaration\n", name, bytes);
    exit(exit_fault);
  }
  FILE* const file = fopen(path, "rb");
  const size_t read = file ? fread(constant->address, 1, bytes ? bytes : constant->bytes, file) : 0;
  if (!read || read < bytes) refuse("a constant cannot be read");
  fclose(file);
}

void read_constants(Words& words) {
  while (words.next < words.end && !strcmp(*words.next, "constant")) {
    words.text();
    const char* const name = words.text();
    const size_t bytes = static_cast<size_t>(words.number());
    fill_constant(name, bytes, words.text());
  }
}

void read_texture(Words& words, Array& array, HostTexture& texture) {
  array.name = texture.name = words.text();
  array.bytes = static_cast<size_t>(words.number());
  array.source = words.text();
  texture.kind = *words.text();
  texture.item_bytes = static_cast<int>(words.number());
  texture.channels = static_cast<int>(words.number());
  texture.is_filtered = !strcmp(words.text(), "linear");
  texture.address = *words.text();
  texture.is_normalized = words.number();
  texture.rank = static_cast<int>(words.number());
  for (long long& size : texture.sizes) size = words.number();
}

void read_arguments(Words& words) {
  const char* const signature = host_entries[host_entry_count - 1].signature;
  for (; words.next < words.end; ++call.count) {
    const int i = call.count;
    if (i == max_arguments || !signature[i]) refuse("the kernel takes fewer arguments than the declaration has");
    call.pointers[i] = &call.values[i];
    const char* const kind = words.text();
    if (!strcmp(kind, "scalar")) {
      read_scalar(signature[i], words.text(), call.values[i]);
      continue;
    }
    if ((signature[i] == 't') != !strcmp(kind, "texture"))
      refuse("a texture of the declaration and a cudaTextureObject_t of the kernel must be in the same place");
    if (signature[i] == 't') {
      read_texture(words, call.arrays[i], call.textures[i]);
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
    const char* const access = words.text();
    array.takes_finite = !strcmp(access, "finite");
    array.writable = array.takes_finite || !strcmp(access, "mutable");
    array.shared = array.writable && call.processes > 1;
    array.source = words.text();
    array.destination = words.text();
  }
  if (signature[call.count]) refuse("the kernel takes more arguments than the declaration has");
}

void place_arrays(Placement placement, unsigned char finite = 0xff) {
  for (int i = 0; i < call.count; ++i) {
    Array& array = call.arrays[i];
    if (!array.name) continue;
    if (*array.source == '=') {
      for (int j = 0; j < i; ++j)
        if (call.arrays[j].name && !strcmp(call.arrays[j].name, array.source + 1)) call.values[i].p = call.arrays[j].data;
      continue;
    }
    array.place(placement);
    array.fill(finite);
    array.protect();
    call.textures[i].data = array.data;
    call.values[i].p = call.textures[i].name ? static_cast<void*>(&call.textures[i]) : array.data;
  }
  memset(host_dynamic_shared, 0xff, max_dynamic_shared_bytes);
}

// All launches in order. A single one finds its block prepared.
void run() {
  for (int i = 0; i < host_entry_count; ++i) {
    if (host_entry_count > 1) prepare_block(call.launches[i].block, false);
    launch(host_entries[i], call.launches[i].grid, call.pointers);
  }
}

double timed(long runs) {
  const double start = cpu_seconds();
  for (long i = 0; i < runs; ++i) run();
  return (cpu_seconds() - start) / static_cast<double>(runs);
}

bool shared_memory_is_overrun() {
  for (size_t i = call.shared_bytes; i < max_dynamic_shared_bytes; ++i)
    if (static_cast<unsigned char>(host_dynamic_shared[i]) != 0xff) {
      fprintf(stderr, "out of bounds: dynamic shared memory was written %zu bytes past its end\n",
              i - call.shared_bytes);
      return true;
    }
  return false;
}

bool is_out_of_bounds() {
  bool found = false;
  for (Array& array : call.arrays) found |= array.data && array.overrun_is_reported();
  return found | shared_memory_is_overrun();
}

// Where the other process failed, ends this one in the same way.
void end_like(int status) {
  if (WIFSIGNALED(status)) raise(WTERMSIG(status));
  if (!WIFEXITED(status) || WEXITSTATUS(status)) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : exit_fault);
}

// The launch of that number by all processes. Those beside this one see its memory as it is now, and only shared arrays come back.
void launch_together(int number) {
  const HostEntry& entry = host_entries[number];
  const dim3 grid = call.launches[number].grid;
  const pid_t parent = getpid();
  for (unsigned i = 1; i < call.processes; ++i) {
    const pid_t child = fork();
    if (child > 0) continue;
    if (!child) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!child && getppid() != parent) _exit(exit_fault);
    launch(entry, grid, call.pointers, i, call.processes);  // here, where there can be no further process
    if (!child) _exit(shared_memory_is_overrun() ? exit_fault : 0);
  }
  launch(entry, grid, call.pointers, 0, call.processes);
  for (int status = 0; wait(&status) > 0;) end_like(status);
}

// A run with the threads by rank or shuffled; ends the process where something was written out of bounds.
void run_checked(bool is_shuffled) {
  for (int i = 0; i < host_entry_count; ++i) {
    prepare_block(call.launches[i].block, is_shuffled);
    launch_together(i);
  }
  if (is_out_of_bounds()) exit(exit_fault);
}

// Whether a run like the second one left other results than that, which were kept; these take their place.
bool differs_when_repeated() {
  place_arrays(Placement::at_start);
  run_checked(true);
  bool differs = false;
  for (Array& array : call.arrays) {
    if (array.data && *array.destination) differs |= !array.is_as_kept();
    if (array.data && array.is_workspace) array.keep();
  }
  for (Array& array : call.arrays) {
    if (differs && array.data && *array.destination) array.save(1);
    array.unmap();
  }
  return differs;
}

void verify() {
  const double start = cpu_seconds();
  for (int pass = 0; pass < 2; ++pass) {
    place_arrays(pass ? Placement::at_start : Placement::at_end, pass ? call.finite : 0xff);
    run_checked(pass == 1);
    for (Array& array : call.arrays) {
      if (array.data && *array.destination) array.save(pass);
      if (array.data && (array.is_workspace || (*array.destination && pass && call.seconds > 0))) array.keep();
      array.unmap();
    }
  }
  for (int pass = 2; pass < max_runs && cpu_seconds() - start < call.seconds; ++pass)
    if (differs_when_repeated()) return;
}

// Walks over memory of its own, writing, so that nothing of the kernel's is left in a cache of that size.
void evict(size_t bytes) {
  static char* const memory = static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) refuse("no memory to walk over");
  for (size_t i = 0; i < bytes; i += 64) reinterpret_cast<volatile char*>(memory)[i] += 1;
}

// Written arrays as before a launch.
void reset_written() {
  for (const Array& array : call.arrays)
    if (array.data) array.reset(call.finite);
}

// Other contents and numbers in the place of those before: `BYTE`, and then in any order `s:VALUE` for each scalar in turn,
// `a:NAME:PATH` for an array and `c:NAME:PATH` for one in constant memory; all fields are parted by tabs.
void load(char* fields) {
  char* rest = nullptr;
  call.finite = static_cast<unsigned char>(atoi(strtok_r(fields, "\t\n", &rest)));
  const char* const signature = host_entries[host_entry_count - 1].signature;
  int scalar = 0;
  while (char* const field = strtok_r(nullptr, "\t\n", &rest)) {
    char* const name = field + 2;
    if (*field == 's') {
      while (scalar < call.count && (call.arrays[scalar].name || !strchr("fdi", signature[scalar]))) ++scalar;
      read_scalar(signature[scalar], name, call.values[scalar]);
      ++scalar;
      continue;
    }
    char* const path = strchr(name, ':') + 1;
    path[-1] = 0;
    if (*field == 'c') fill_constant(name, 0, path);
    for (Array& array : call.arrays)
      if (*field == 'a' && array.data && !strcmp(array.name, name)) array.load(path);
  }
}

void end_where_out_of_bounds() {
  if (is_out_of_bounds()) exit(exit_fault);
}

// One launch on what was loaded, which goes to DESTINATION.0 and is kept to compare later launches with.
void answer_fresh() {
  reset_written();
  const double seconds = timed(1);
  if (!(call.one > 0 && call.one < seconds)) call.one = seconds;
  end_where_out_of_bounds();
  for (Array& array : call.arrays)
    if (array.data && *array.destination) array.save(0), array.keep();
  fprintf(answers, "%.12f\n", seconds);
}

bool is_read_and_written() {
  for (const Array& array : call.arrays)
    if (array.data && array.first) return true;
  return false;
}

// Whether the last launch left what the fresh one did; else it goes to DESTINATION.1.
bool is_as_fresh() {
  bool is_same = true;
  for (const Array& array : call.arrays)
    if (array.data && *array.destination) is_same = is_same && array.is_as_kept();
  for (const Array& array : call.arrays)
    if (!is_same && array.data && *array.destination) array.save(1);
  return is_same;
}

void answer_samples(long count, double min_seconds, size_t evicted_bytes) {
  const bool is_short = !evicted_bytes && call.one < min_seconds / 4;  // a few launches as one sample could hide one
  const long runs = is_short ? static_cast<long>(min_seconds / (call.one > 1e-8 ? call.one : 1e-8)) + 1 : 1;
  for (long i = 0; i < count; ++i) {
    reset_written();
    if (evicted_bytes) evict(evicted_bytes);
    fprintf(answers, "%.12f\n", timed(runs));
  }
  end_where_out_of_bounds();
  if (runs > 1 && is_read_and_written()) reset_written(), run();  // what many launches on one another leave, nobody knows
  fprintf(answers, is_as_fresh() ? "same\n" : "other\n");
}

void answer_questions() {
  place_arrays(Placement::at_start);
  prepare_block(call.launches[0].block, false);
  static char line[1 << 16];
  while (fgets(line, sizeof line, stdin)) {
    long count = 0;
    double min_seconds = 0;
    size_t evicted_bytes = 0;
    if (!strncmp(line, "load ", 5)) {
      load(line + 5);
      continue;
    }
    if (!strncmp(line, "fresh", 5)) {
      answer_fresh();
    } else if (sscanf(line, "sample %ld %lf %zu", &count, &min_seconds, &evicted_bytes) == 3) {
      answer_samples(count, min_seconds, evicted_bytes);
    } else {
      refuse("not a question");
    }
    fflush(answers);
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
  part_answers_from_prints();
  Words words = {argv + 1, argv + argc};
  const bool is_sample = !strcmp(words.text(), "sample");
  if (!is_sample) {
    call.processes = words.size();
    call.finite = static_cast<unsigned char>(words.number());
    call.seconds = atof(words.text());
  }
  read_launches(words);
  read_constants(words);
  read_arguments(words);
  for (Array& array : call.arrays)
    if (array.name && *array.destination) array.open_results();
  confine(call.processes > 1);
  is_sample ? answer_questions() : verify();
  fflush(stdout);
  _exit(0);
}
