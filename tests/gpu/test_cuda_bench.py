import ctypes
import itertools
import math
import re
import statistics
import weakref

import numpy as np
import pytest
from waiting import until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.tuner.arrays import DRAWN_KINDS, FACTOR_KINDS, random_arrays, rotating_kinds, scalar_values
from tilewright.tuner.compile.compilation import arch_of
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.devices.cuda import reference as cuda_reference
from tilewright.tuner.devices.occupancy import blocks_per_multiprocessor
from tilewright.tuner.line_kinds import bound_width
from tilewright.tuner.loop import verify

pytestmark = pytest.mark.gpu
GEMM, GEMV, LINEAR, GATED = (catalogue().get(name) for name in ("gemm", "gemv", "linear", "linear_gated"))


@pytest.fixture
def bench(device):
    options = {"beta_zero": False, "trans_a": True}
    bench = device.bench(GEMM, GEMM.problem({"m": 133, "n": 57, "k": 129}, "float32", options), 3)
    yield bench
    bench.close()


def default_of(bench):
    space = bench.kernel.space(bench.problem, bench.device.model.limits, ["naive"])
    return bench.compile(space.defaults()[0])


def reference_of(bench):
    return bench.kernel.reference(bench.problem, bench.arrays.host, bench.scalars)


def test_the_device_compares_as_the_host_does(bench):
    found = bench.verify(default_of(bench))
    expected = verify.compare(bench.output(), reference_of(bench), "float32")
    assert found.bound_ratio == pytest.approx(expected.bound_ratio, rel=1e-12)
    assert (found.wrong, found.first_wrong) == (expected.wrong, expected.first_wrong) == (0, None)


@pytest.mark.parametrize("value", [1e9, np.nan, np.inf, -np.inf])
def test_single_wrong_components_are_counted_and_found(bench, value):
    bench.verify(default_of(bench))
    out = bench.output()
    out[100, 3] = out[5, 7] = value
    bench.device.upload(bench.arrays.addresses["C"], out)
    found = bench.arrays.inspect().verification
    expected = verify.compare(out, reference_of(bench), "float32")
    assert (found.wrong, found.first_wrong) == (2, (5, 7)) == (expected.wrong, expected.first_wrong)
    assert found.got == pytest.approx(expected.got, nan_ok=True)
    assert found.expected == pytest.approx(expected.expected)
    assert found.bound_ratio == pytest.approx(expected.bound_ratio, rel=1e-12)


def test_a_write_across_an_arrays_edge_is_seen_and_repaired(bench):
    executable = default_of(bench)
    address = bench.arrays.addresses["A"]
    bench.device.fill(address - 8, 16, 7)
    bench.device.synchronize()
    inspection = bench.arrays.inspect()
    assert inspection.damage == {"A": 2}
    assert inspection.changed_inputs == ["A"]
    bench.arrays.reset_all()
    assert bench.verify(executable).wrong == 0


def test_timing_accumulates_in_place_and_verification_does_not_notice(bench):
    executable = default_of(bench)
    before = bench.verify_each_kind(executable)
    bench.sample(executable, "warm", 3)
    assert bench.verify_each_kind(executable) == before


def test_kinds_of_inputs_take_turns_and_timing_is_always_with_the_first(bench):
    executable, kinds = default_of(bench), rotating_kinds(bench.arrays.kinds, 3)
    assert [bench.verify(executable).inputs for _ in range(len(kinds) + 1)] == [*kinds, "normal"]
    bench.verify(executable)
    assert np.all(bench.arrays.host["A"] >= 0)  # uniform
    bench.sample(executable, "warm", 1)
    held = np.empty_like(bench.arrays.host["A"])
    bench.device.download(bench.arrays.addresses["A"], held)
    assert np.array_equal(held, random_arrays(bench.kernel, bench.problem, 3)["A"])


def test_large_inputs_are_drawn_beside_the_trials_and_every_kind_gets_its_turn(device):
    bench = device.bench(GEMM, GEMM.problem({"m": 16, "n": 4096, "k": 4096}), 3)
    executable, seen = default_of(bench), set()

    def have_all_been_seen():
        verification = bench.verify(executable)
        assert verification.wrong == 0
        seen.add(verification.inputs)
        return seen == set(rotating_kinds(bench.arrays.kinds, 3))

    until(have_all_been_seen, lambda: str(seen))
    assert {one.inputs for one in bench.verify_each_kind(executable)} == set(DRAWN_KINDS) | set(FACTOR_KINDS)
    bench.close()


@pytest.mark.parametrize(("kernel", "dtype"), [(GEMM, "bfloat16"), (LINEAR, "float32")], ids=["gemm", "linear"])
def test_a_family_keeps_the_inputs_of_its_largest_size_for_the_others(device, kernel, dtype):
    family = Family.of(kernel, {"m": (1, 700), "n": 136, "k": 264}, dtype)
    largest = device.bench(kernel, family.at(700), 3)
    kept = device._kept
    for m in (700, 133, 1):
        bench = largest if m == 700 else device.bench(kernel, family.at(m), 3)
        executable = bench.compile(kernel.space(family.at(m), device.model.limits, ["tiled"]).defaults()[0])
        found = bench.verify_each_kind(executable)
        assert [one.wrong for one in found] == [0] * len(found), (m, found)
        assert {one.inputs for one in found} == set(bench.arrays.kinds)
        out = bench.output()
        out[m - 1, 7] = 1e9
        bench.device.upload(bench.arrays.addresses[kernel.output.name], out)
        assert bench.arrays.inspect().verification.first_wrong == (m - 1, 7)
        assert device._kept is kept
        bench.close()
    device.bench(kernel, family.exact(5), 3).close()
    assert device._kept is None


PRODUCTS = [
    *(
        (GEMM, {"m": 133, "n": 57, "k": 129}, dict(zip(("trans_a", "trans_b", "beta_zero"), flags, strict=True)))
        for flags in itertools.product((False, True), repeat=3)
    ),
    *(
        (GEMV, {"m": 133, "n": 257}, dict(zip(("trans_a", "beta_zero"), flags, strict=True)))
        for flags in itertools.product((False, True), repeat=2)
    ),
    (GEMM, {"m": 1, "n": 57, "k": 129}, {"accuracy": "tf32"}),
    *((LINEAR, {"m": 33, "n": 70, "k": 65}, {"activation": activation}) for activation in ACTIVATIONS),
    *((GATED, {"m": 33, "n": 70, "k": 65}, {"activation": activation}) for activation in ("silu", "relu")),
]


def agree(found, expected, magnitude):
    """The same infinities, NaN in the same places, and what is finite but for float64's own rounding.

    That is through an activation; a bound is 1e-7.
    """
    odd = ~np.isfinite(expected)
    np.testing.assert_array_equal(found[odd], expected[odd])
    assert np.all(np.abs(found[~odd] - expected[~odd]) <= 1e-10 * magnitude[~odd])


@pytest.mark.parametrize("kind", [*DRAWN_KINDS, *FACTOR_KINDS])
@pytest.mark.parametrize(("kernel", "shape", "options"), PRODUCTS)
def test_the_device_makes_the_reference_that_numpy_makes(device, monkeypatch, kernel, shape, options, kind):
    monkeypatch.setattr(cuda_reference, "_SMALL_FLOPS", 0)
    problem = kernel.problem(shape, kernel.dtypes[0], options)
    bench = device.bench(kernel, problem, 3)
    if kind not in bench.arrays.kinds:
        bench.close()
        pytest.skip(f"{kernel.name} is not verified with {kind} inputs")
    bench.arrays.use(kind)
    expected = kernel.reference(problem, random_arrays(kernel, problem, 3, kind), scalar_values(kernel, problem, kind))
    held = bench.arrays.case.references[kernel.output.name]
    value, magnitude = np.empty_like(expected.value), np.empty_like(expected.value)
    device.download(int(held.value), value)
    device.download(int(held.magnitude), magnitude)
    bench.close()
    agree(value, expected.value, expected.magnitude)
    agree(magnitude, expected.magnitude, expected.magnitude)
    width = bound_width(kernel, problem, kind)
    assert held.factor == width * verify.bound_factor(expected.terms, expected.unit_roundoff, problem.dtype)
    assert held.terms == expected.terms


@pytest.mark.parametrize("accuracy", ["fp32", "fp32-fma", "tf32"])
def test_the_library_is_within_the_bound_of_each_accuracy_and_named_after_it(device, accuracy):
    bench = device.bench(GEMM, GEMM.problem({"m": 512, "n": 384, "k": 640}, "float32", {"accuracy": accuracy}), 5)
    library = bench.library()
    worst = verify.verify_library_call(bench, library)
    name = bench.library_name()
    bench.close()
    assert worst.wrong == 0
    assert ("TF32" in name) is (accuracy == "tf32")


EPILOGUES = ("none", "relu")
"""Activations that cuBLASLt applies itself, bias included."""


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid", "tanh", "gelu"])
@pytest.mark.parametrize("columns", [64, 67])
def test_the_librarys_layer_is_one_call_or_its_product_and_a_kernel_for_the_rest(device, activation, columns):
    bench = device.bench(
        LINEAR, LINEAR.problem({"m": 33, "n": columns, "k": 65}, "float32", {"activation": activation}), 5
    )
    library = bench.library()
    worst, name = verify.verify_library_call(bench, library), bench.library_name()
    bench.close()
    assert worst.wrong == 0
    assert name.endswith("+ bias and activation kernel") or activation in EPILOGUES


def test_replayed_batches_agree_with_single_launches(device):
    bench = device.bench(GEMM, GEMM.problem({"m": 512, "n": 512, "k": 2048}), 1)
    executable = default_of(bench)
    batched = statistics.median(bench.sample(executable, "warm", 9)[2:])
    assert executable.batch > 1
    single = statistics.median(device.times_ms(executable.enqueue, 9)[2:])
    assert batched == pytest.approx(single, rel=0.15)
    bench.close()


def test_the_launch_that_tells_a_batch_of_one_is_followed_by_the_samples(bench):
    device, size = bench.device, 1 << 26
    memory = device.allocate(size)
    fills = math.ceil(0.5 / min(device.times_ms(lambda: device.fill(int(memory), size, 0), 5)))
    launches = 0

    def enqueue():
        nonlocal launches
        launches += 1
        for _ in range(fills):
            device.fill(int(memory), size, 0)

    executable = bench.executable(enqueue)
    samples = bench.sample(executable, "warm", 3)
    assert executable.batch == 1
    assert launches == 1 + 1 + 1 + 3  # one to load it, one to estimate by, one that keeps the GPU busy
    more = bench.sample(executable, "warm", 9)
    assert statistics.median(samples) == pytest.approx(statistics.median(more), rel=0.1)


def test_a_cold_cache_costs_a_memory_bound_kernel_time(device):
    bench = device.bench(GEMV, GEMV.problem({"m": 2048, "n": 2048}), 1)  # 16 MiB: fits the L2 cache of large GPUs
    if device.model.l2_bytes < 32 << 20:
        pytest.skip("the matrix does not fit this GPU's L2 cache")
    executable = bench.compile(GEMV.space(bench.problem, device.model.limits, ["warp"]).defaults()[0])
    warm = statistics.median(bench.sample(executable, "warm", 9))
    cold = statistics.median(bench.sample(executable, "cold", 9))
    assert cold > 1.15 * warm
    bench.close()


@pytest.mark.parametrize(
    ("dtype", "trans_a", "trans_b", "beta_zero"),
    list(itertools.product(("float32", "float64"), (False, True), (False, True), (False, True))),
)
def test_the_library_computes_gemm(device, dtype, trans_a, trans_b, beta_zero):
    options = {"trans_a": trans_a, "trans_b": trans_b, "beta_zero": beta_zero}
    bench = device.bench(GEMM, GEMM.problem({"m": 65, "n": 33, "k": 129}, dtype, options), 5)
    library = bench.library()
    assert bench.verify(library).wrong == 0
    assert all(sample > 0 for sample in bench.sample(library, "warm", 3) + bench.sample(library, "cold", 3))
    assert re.fullmatch(r"cuBLAS(Lt)? 1\d\.\d+\.\d+ \(.+, FP(32|64)\)", bench.library_name())
    bench.close()


@pytest.mark.parametrize(("dtype", "beta_zero"), list(itertools.product(("float32", "float64"), (False, True))))
def test_the_library_computes_gemv(device, dtype, beta_zero):
    bench = device.bench(GEMV, GEMV.problem({"m": 77, "n": 1033}, dtype, {"beta_zero": beta_zero}), 5)
    assert bench.verify(bench.library()).wrong == 0
    bench.close()


def test_occupancy_is_the_drivers(device):
    driver = ctypes.CDLL("libcuda.so.1")
    limits = device.model.limits
    source = """
    extern "C" __global__ void f(float* a, int n) {
      __shared__ char s[SHARED];
      float x[LIVE];
      s[threadIdx.x % SHARED] = n;
      __syncthreads();
      a[0] = s[n % SHARED];
      for (int i = 0; i < LIVE; ++i) x[i] = a[i * n + threadIdx.x];
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < LIVE; ++i) x[i] = x[i] * x[(i + 1) % LIVE] + a[j];
      for (int i = 0; i < LIVE; ++i) a[i * n + threadIdx.x] = x[i];
    }"""
    for live, shared in itertools.product((4, 16, 32, 64, 110), (2, 1000, 4096, 10000, 33000)):
        compiled = compile_nvrtc(
            source, {"LIVE": str(live), "SHARED": str(shared)}, arch_of(limits.compute_capability), "f"
        )
        module, function, blocks = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        assert driver.cuModuleLoadData(ctypes.byref(module), compiled.cubin) == 0
        assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"f") == 0
        for threads, dynamic in itertools.product((32, 96, 128, 160, 256, 384, 768, 1024), (0, 100, 5000)):
            ask = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
            assert ask(ctypes.byref(blocks), function, threads, ctypes.c_size_t(dynamic)) == 0
            found = compiled.resources
            ours = blocks_per_multiprocessor(found.registers, found.shared_bytes + dynamic, threads, limits)
            assert ours == blocks.value, (found, threads, dynamic)
        driver.cuModuleUnload(module)


class Held:
    """Device memory of which a test counts what there is; `int()` of it is the address."""

    def __init__(self, memory):
        self._memory = memory

    def __int__(self):
        return int(self._memory)


def test_a_closed_bench_gives_its_memory_back(device, monkeypatch):
    """Counted by itself: what is free of the device also depends on the other processes that use it."""
    allocate, held = device.allocate, weakref.WeakSet()

    def counted(size_bytes):
        memory = Held(allocate(size_bytes))
        held.add(memory)
        return memory

    monkeypatch.setattr(device, "allocate", counted)
    bench = device.bench(GEMM, GEMM.problem({"m": 512, "n": 64, "k": 64}), 1)
    bench.sample(default_of(bench), "warm", 1)
    bench.verify_each_kind(bench.library())
    assert len(held) > len(bench.arrays.addresses)
    bench.close()
    del bench
    assert not held
