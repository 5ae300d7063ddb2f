"""The variant `register` made to run on the CPU device: its sources with copies and clusters of a kind for the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from contracts.host_compiler import needs_cpp_library

from tilewright.kernels.kernel import Kernel

HOST_STORE = r"""
template <unsigned WIDTH>
inline void store_global(REAL* target, const Pack<WIDTH>& pack) {
  if ((size_t)target % sizeof(Pack<WIDTH>)) __builtin_trap();
  store_pack<WIDTH>(target, pack);
}
"""

# Asynchronous copies for the host: a copy poisons its target when it starts and arrives when its group is waited for.
# Without clusters, so BY_CLUSTER is 0 here.
HOST_COPIES = (
    r"""
#include <cstring>
#include <deque>
#include <vector>
struct HostCopy { unsigned target; const void* source; unsigned bytes; bool inside; };
struct HostQueue { std::vector<HostCopy> open; std::deque<std::vector<HostCopy>> groups; };
static HostQueue host_queues[1024];
static char* host_base = nullptr;
inline unsigned shared_address(const void* pointer) {
  if (!host_base) host_base = (char*)pointer;
  return (unsigned)((char*)pointer - host_base);
}
template <unsigned BYTES, unsigned INTO, long long FROM = 0>
inline void copy_async_or_zero(unsigned target, const void* start, bool inside) {
  const void* source = (const char*)start + FROM;
  if ((target + INTO) % BYTES || (inside && (size_t)source % BYTES)) __builtin_trap();
  memset(host_base + target + INTO, 0xff, BYTES);
  host_queues[threadIdx.x].open.push_back({target + INTO, source, BYTES, inside});
}
template <unsigned BYTES, unsigned INTO, long long FROM>
inline void copy_async(unsigned target, const void* source) {
  copy_async_or_zero<BYTES, INTO, FROM>(target, source, true);
}
inline void commit_copies() {
  HostQueue& queue = host_queues[threadIdx.x];
  queue.groups.push_back(std::move(queue.open));
  queue.open.clear();
}
template <unsigned PENDING>
inline void wait_copies() {
  HostQueue& queue = host_queues[threadIdx.x];
  for (; queue.groups.size() > PENDING; queue.groups.pop_front()) {
    for (const HostCopy& copy : queue.groups.front()) {
      if (copy.inside) memcpy(host_base + copy.target, copy.source, copy.bytes);
      else memset(host_base + copy.target, 0, copy.bytes);
    }
  }
}
inline unsigned address_in(unsigned address, unsigned) { return address; }
inline Pack<16 / REAL_BYTES> load_cluster(unsigned) { return {}; }
inline void synchronize_cluster() {}
"""
    + HOST_STORE
)


def register_on_host(kernel: Kernel, folder: Path) -> Kernel:
    """The kernel with this one variant, its sources copied to the folder; skips the test without C++'s library."""
    needs_cpp_library()
    here = folder / kernel.name
    here.mkdir()
    # The kernel's own headers come before those beside it, as in the catalogue.
    for path in [*kernel.folder.parent.glob("*.cuh"), *kernel.folder.glob("*.cu*")]:
        (here / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (here / "async_copy.cuh").write_text(HOST_COPIES, encoding="utf-8")
    variant = replace(kernel.variant("register"), requires=frozenset())
    return replace(kernel, folder=here, variants=(variant,), default_variant="register")
