#include "arrays.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "block.h"

namespace {

constexpr size_t guard_bytes = size_t(64) << 20;  // address space only; an access further out meets no other array
constexpr size_t alignment = 16;                  // the widest vector load
constexpr unsigned char poison = 0xff;            // a NaN in float and in double

[[noreturn]] void refuse(const char* what, const char* path) {
  fprintf(stderr, "%s: ", path);
  perror(what);
  exit(exit_usage);
}

}  // namespace

void Array::place(Placement placement) {
#if defined(HOST_ASAN) || defined(HOST_TSAN)
  (void)placement;
  data = static_cast<char*>(malloc(bytes));  // AddressSanitizer's red zones start right behind it
  if (!data) refuse("no memory", name);
#else
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  page_bytes = (bytes + page - 1) / page * page;
  const int sharing = shared ? MAP_SHARED : MAP_PRIVATE;
  char* const reserved = static_cast<char*>(mmap(nullptr, page_bytes + 2 * guard_bytes, PROT_NONE,
                                                 sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (reserved == MAP_FAILED) refuse("no address space", name);
  pages = reserved + guard_bytes;
  if (mprotect(pages, page_bytes, PROT_READ | PROT_WRITE)) refuse("no memory", name);
  const size_t slack = (page_bytes - bytes) / alignment * alignment;
  data = pages + (placement == Placement::at_end ? slack : 0);
  memset(pages, poison, size_t(data - pages));
  memset(data + bytes, poison, size_t(pages + page_bytes - data) - bytes);
#endif
}

void Array::fill(unsigned char finite) const {
  if (is_workspace) {
    kept ? memcpy(data, kept, bytes) : memset(data, 0, bytes);
    return;
  }
  if (!*source) {
    memset(data, takes_finite ? finite : poison, bytes);
    return;
  }
  FILE* const file = fopen(source, "rb");
  if (!file || fread(data, 1, bytes, file) != bytes) refuse("cannot be read", source);
  fclose(file);
}

void Array::keep() {
  if (!kept) kept = static_cast<char*>(malloc(bytes));
  if (!kept) refuse("no memory", name);
  memcpy(kept, data, bytes);
}

bool Array::is_as_kept() const { return !memcmp(data, kept, bytes); }

void Array::protect() const {
  if (pages && !writable) mprotect(pages, page_bytes, PROT_READ);
}

void Array::open_results() {
  for (int number = 0; number < 2; ++number) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", destination, number);
    results[number] = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (results[number] < 0) refuse("cannot be written", path);
  }
}

void Array::save(int number) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(results[number], data + done, bytes - done, static_cast<off_t>(done));
    if (written <= 0) refuse("cannot be written", destination);
    done += static_cast<size_t>(written);
  }
}

void Array::load(const char* path) {
  if (pages) mprotect(pages, page_bytes, PROT_READ | PROT_WRITE);
  FILE* const file = fopen(path, "rb");
  if (!file || fread(data, 1, bytes, file) != bytes) refuse("cannot be read", path);
  fclose(file);
  protect();
  if (!writable) return;
  if (!first) first = static_cast<char*>(malloc(bytes));
  if (!first) refuse("no memory", name);
  memcpy(first, data, bytes);
}

void Array::reset(unsigned char finite) const {
  if (!writable || is_workspace) return;
  first ? memcpy(data, first, bytes) : memset(data, takes_finite ? finite : poison, bytes);
}

bool Array::overrun_is_reported() const {
  for (const char* at = pages; at < pages + page_bytes; ++at) {
    if (at == data) at += bytes;
    if (at == pages + page_bytes) break;
    if (static_cast<unsigned char>(*at) == poison) continue;
    const bool before = at < data;
    fprintf(stderr, "out of bounds: %s was written %zd bytes %s\n", name, before ? data - at : at - (data + bytes),
            before ? "before its start" : "past its end");
    return true;
  }
  return false;
}

bool Array::fault_is_reported(const char* address) const {
  if (!pages || address < pages - guard_bytes || address >= pages + page_bytes + guard_bytes) return false;
  if (address >= data + bytes) {
    fprintf(stderr, "out of bounds: access %zd bytes past the end of %s\n", address - (data + bytes), name);
  } else if (address < data) {
    fprintf(stderr, "out of bounds: access %zd bytes before the start of %s\n", data - address, name);
  } else {
    fprintf(stderr, "%s is an input and was written, %zd bytes from its start\n", name, address - data);
  }
  return true;
}

void Array::unmap() {
  if (pages) munmap(pages - guard_bytes, page_bytes + 2 * guard_bytes);
  pages = data = nullptr;
}
