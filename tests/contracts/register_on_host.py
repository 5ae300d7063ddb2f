"""The variant `register` made to run on the CPU device: its sources with copies and clusters of a kind for the host."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from contracts.launches_on_host import needs_cpp_library

from tilewright.kernels.kernel import Kernel

GLOBAL_MEMORY = r"""
#pragma once
#include "common/real.cuh"
template <unsigned WIDTH>
inline void store_global(REAL* target, const Pack<WIDTH>& pack) {
  if ((size_t)target % sizeof(Pack<WIDTH>)) __builtin_trap();
  store_pack<WIDTH>(target, pack);
}
inline Pack<QUAD> load_from_l2(const REAL* source) { return load_pack<QUAD>(source); }
"""

SHARED_MEMORY = r"""
#pragma once
static char* host_base = nullptr;
inline unsigned shared_address(const void* pointer) {
  if (!host_base) host_base = (char*)pointer;
  return (unsigned)((char*)pointer - host_base);
}
"""

# Asynchronous copies for the host: a copy poisons its target when it starts and arrives when its group is waited for.
CP_ASYNC = r"""
#pragma once
#include <cstring>
#include <deque>
#include <vector>
#include "ptx/shared_memory.cuh"
struct HostCopy { unsigned target; const void* source; unsigned bytes; bool inside; };
struct HostQueue { std::vector<HostCopy> open; std::deque<std::vector<HostCopy>> groups; };
static HostQueue host_queues[1024];
template <unsigned BYTES, unsigned INTO, long long FROM = 0>
inline void cp_async_zfill(unsigned target, const void* start, bool inside) {
  const void* source = (const char*)start + FROM;
  if ((target + INTO) % BYTES || (inside && (size_t)source % BYTES)) __builtin_trap();
  memset(host_base + target + INTO, 0xff, BYTES);
  host_queues[threadIdx.x].open.push_back({target + INTO, source, BYTES, inside});
}
template <unsigned BYTES, unsigned INTO, long long FROM>
inline void cp_async(unsigned target, const void* source) {
  cp_async_zfill<BYTES, INTO, FROM>(target, source, true);
}
inline void cp_async_commit_group() {
  HostQueue& queue = host_queues[threadIdx.x];
  queue.groups.push_back(std::move(queue.open));
  queue.open.clear();
}
template <unsigned PENDING>
inline void cp_async_wait_group() {
  HostQueue& queue = host_queues[threadIdx.x];
  for (; queue.groups.size() > PENDING; queue.groups.pop_front()) {
    for (const HostCopy& copy : queue.groups.front()) {
      if (copy.inside) memcpy(host_base + copy.target, copy.source, copy.bytes);
      else memset(host_base + copy.target, 0, copy.bytes);
    }
  }
}
"""

# Without clusters, so BY_CLUSTER is 0 here.
CLUSTER = r"""
#pragma once
#include "common/real.cuh"
inline unsigned mapa(unsigned address, unsigned) { return address; }
inline Pack<QUAD> ld_shared_cluster(unsigned) { return {}; }
inline void cluster_sync() {}
inline void cluster_wait() {}
inline void cluster_arrive_relaxed() {}
"""

ST_ASYNC = r"""
#pragma once
#include "ptx/cluster.cuh"
inline void mbarrier_init(unsigned, unsigned) {}
inline void fence_mbarrier_init() {}
inline void mbarrier_expect(unsigned, unsigned) {}
inline void mbarrier_wait_cluster(unsigned) {}
inline void st_async(unsigned, unsigned, const Pack<QUAD>&) {}
"""

HEADERS = {
    "common/global_memory.cuh": GLOBAL_MEMORY,
    "ptx/cluster.cuh": CLUSTER,
    "ptx/cp_async.cuh": CP_ASYNC,
    "ptx/shared_memory.cuh": SHARED_MEMORY,
    "ptx/st_async.cuh": ST_ASYNC,
}


def beside(headers: Mapping[str, str], kernel: Kernel, folder: Path) -> Path:
    """A copy of the kernel's folder, the headers lying beside it: there they are found before Tilewright's own."""
    for name, text in headers.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return Path(shutil.copytree(kernel.folder, folder / kernel.name, ignore=shutil.ignore_patterns("__pycache__")))


def register_on_host(kernel: Kernel, folder: Path) -> Kernel:
    """The kernel with this one variant, its sources copied to the folder; skips the test without C++'s library."""
    needs_cpp_library()
    here = beside(HEADERS, kernel, folder)
    variant = replace(kernel.variant("register"), requires=frozenset())
    return replace(kernel, folder=here, variants=(variant,), default_variant="register")
