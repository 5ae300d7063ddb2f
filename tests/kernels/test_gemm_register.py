"""The variant `register` of gemm: its arithmetic on the host, its model of registers and shared memory."""

import random
from dataclasses import replace

import pytest

from tilewright.kernels.gemm import register_space
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration, Values
from tilewright.tuner import nvrtc
from tilewright.tuner.compile import compile_nvrtc
from tilewright.tuner.cpu import CpuDevice
from tilewright.tuner.cpu_compile import find_compiler
from tilewright.tuner.errors import NoCompilerError

H200 = Limits((9, 0), 132, 140 * 2**30, max_shared_bytes=227 * 1024, shared_bytes_per_multiprocessor=228 * 1024)

# Asynchronous copies for the host: a copy poisons its target when it starts and arrives when its group is waited for.
# Without clusters, so BY_CLUSTER is 0 here.
HOST_COPIES = r"""
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
template <unsigned BYTES, unsigned INTO>
inline void copy_async_or_zero(unsigned target, const void* source, bool inside) {
  if ((target + INTO) % BYTES || (inside && (size_t)source % BYTES)) __builtin_trap();
  memset(host_base + target + INTO, 0xff, BYTES);
  host_queues[threadIdx.x].open.push_back({target + INTO, source, BYTES, inside});
}
template <unsigned BYTES, unsigned INTO, long long FROM>
inline void copy_async(unsigned target, const void* source) {
  copy_async_or_zero<BYTES, INTO>(target, (const char*)source + FROM, true);
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


def draw(problem, limits, count, generator, **fixed):
    """Random feasible values of the variant's parameters."""
    space = register_space.REGISTER.space()
    found = {}
    while len(found) < count:
        point = {p.name: generator.choice(p.values) for p in space.parameters} | fixed
        if space.violated(Values(point), problem, limits) is None:
            found[Configuration.of("register", point)] = None
    return list(found)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this one variant, whose copies work on the host."""
    folder = tmp_path_factory.mktemp("kernels") / "gemm"
    folder.mkdir()
    for path in [*KERNEL.folder.glob("*.cu*"), *KERNEL.folder.parent.glob("*.cuh")]:
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "async_copy.cuh").write_text(HOST_COPIES, encoding="utf-8")
    variant = replace(register_space.REGISTER, requires=frozenset())
    return replace(KERNEL, folder=folder, variants=(variant,), default_variant="register")


@pytest.mark.parametrize(
    ("sizes", "dtype", "layout", "split_k"),
    [
        ((97, 70, 35), "float32", (False, False), 1),
        ((64, 132, 260), "float32", (True, True), 4),
        ((33, 50, 131), "float64", (False, True), 2),
        ((1, 200, 19), "float32", (False, False), 1),
        ((130, 36, 8), "float64", (True, False), 1),
        ((5, 3, 1), "float32", (True, False), 1),
        ((40, 70, 1030), "float32", (True, False), 16),
        ((17, 33, 395), "float64", (True, True), 6),
    ],
    ids=str,
)
def test_products_are_right_in_every_layout(hosted, sizes, dtype, layout, split_k):
    try:
        find_compiler()
    except NoCompilerError:
        pytest.skip("needs a C++ compiler")
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] != layout[1]}
    problem = hosted.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    device = CpuDevice()
    bench = device.bench(hosted, problem, 1)
    limits = replace(device.model.limits, multiprocessors=H200.multiprocessors)  # so that splitting k is of use
    [configuration] = draw(problem, limits, 1, random.Random(str(sizes)), SPLIT_K=split_k, BY_CLUSTER=0)
    verification = bench.verify(bench.compile(configuration))
    assert verification.wrong == 0, (configuration, verification.message())
    bench.close()
    device.close()


needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="needs NVRTC (the wheel nvidia-cuda-nvrtc)")


@needs_nvrtc
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (1023, 1025, 1027), (50, 96, 300)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_registers_stay_near_the_estimate_and_do_not_spill(sizes, dtype):
    generator = random.Random(str(sizes))
    options = {name: generator.random() < 0.5 for name in ("trans_a", "trans_b", "beta_zero")}
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    for configuration in draw(problem, H200, 3, generator):
        definitions = KERNEL.definitions(problem, configuration)
        compiled = compile_nvrtc(KERNEL.source("register"), definitions, "sm_90", KERNEL.entry)
        estimate = register_space.registers(configuration.values, problem)
        assert compiled.resources.registers <= estimate + 48, configuration
        assert compiled.resources.spill_bytes == 0, configuration


def test_only_devices_with_clusters_are_offered_them():
    problem = KERNEL.problem({"m": 64, "n": 64, "k": 4096})
    space, generator = register_space.REGISTER.space(), random.Random(1)
    [clustered] = draw(problem, H200, 1, generator, SPLIT_K=16, BY_CLUSTER=1)
    ampere = replace(H200, compute_capability=(8, 0))
    assert space.violated(clustered.values, problem, ampere) == "there are clusters where blocks form some"
    apart = Values({**clustered.values, "BY_CLUSTER": 0})
    assert space.violated(apart, problem, ampere) is None


@pytest.mark.parametrize(
    ("split_k", "by_cluster", "shares", "parts"),
    # 64 quads of sums for 256 threads; a cluster of 8 leaves one part of each of its 8 shares.
    [(1, 0, 0, 0), (6, 0, 1, 6), (8, 1, 0, 0), (32, 1, 8, 4), (12, 1, 4, 3)],
)
def test_the_workspace_holds_counters_and_parts_of_every_tile(split_k, by_cluster, shares, parts):
    values = {"WARPS_M": 4, "WARPS_N": 2, "LANES_M": 4, "WPT_M": 8, "WPT_N": 8, "TILE_K": 8, "STAGES": 2}
    values |= {"SPLIT_K": split_k, "BY_CLUSTER": by_cluster}
    problem = KERNEL.problem({"m": 300, "n": 129, "k": 4096})
    tile_count, tile_bytes = 3 * 2, 128 * 128 * 4
    counter_bytes = -(-tile_count * shares * 4 // 16) * 16
    expected = counter_bytes + tile_count * parts * tile_bytes
    assert register_space.workspace_bytes(Values(values), problem) == expected


def test_a_device_without_ptx_is_not_offered_the_variant():
    host = replace(H200, compute_capability=(0, 0), features=frozenset())
    problem = KERNEL.problem({"m": 64, "n": 64, "k": 64})
    assert "register" not in {v.name for v in KERNEL.usable_variants(problem, host)}


@pytest.mark.parametrize(
    ("name", "trans_a", "trans_b", "elements"),
    # Three buffers of 16 k: 128 rows of A and 128 columns of B, four more where a side is transposed on the way.
    [("nn", False, False, 132 + 128), ("tt", True, True, 128 + 132), ("tn", True, False, 128 + 128)],
)
def test_shared_memory_holds_the_ring_and_its_padding(name, trans_a, trans_b, elements):
    values = Values(
        {"TILE_K": 16, "WARPS_M": 4, "WARPS_N": 2, "LANES_M": 4, "WPT_M": 8, "WPT_N": 8, "STAGES": 3, "BY_CLUSTER": 0}
    )
    problem = KERNEL.problem({"m": 512, "n": 512, "k": 512}, options={"trans_a": trans_a, "trans_b": trans_b})
    assert register_space.shared_bytes(values, problem) == 3 * 16 * elements * 4, name
