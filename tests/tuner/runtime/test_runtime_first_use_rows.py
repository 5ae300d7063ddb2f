"""The check that runs on a GPU, with its CUDA source compiled for the host: what it finds in a product."""

import ctypes
from math import erf

import ml_dtypes  # noqa: F401 - bfloat16 by name
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, find_compiler, translation_unit
from tilewright.tuner.runtime.first_use.on_stream import _Verdict
from tilewright.tuner.runtime.first_use.product import ROWS, ProductTask, definitions, source

M, N, K = 45, 37, 150

STRUCT_ARGUMENT = "template <> struct host_letter<Task> { static constexpr char value = 's'; };"
"""The host's shim passes numbers and addresses; a structure needs a letter of its own."""


def library(folder, entry, macros):
    """One kernel of the source, in a cache that the tests share."""
    builder = HostBuilder(find_compiler(), folder)
    text = translation_unit(builder.compiler, [entry], source() + STRUCT_ARGUMENT, dict(macros), "rows.cu")
    text += (HOST_FOLDER / "library.inc").read_text()
    path, _ = builder._kept(LIBRARY, text, "", lambda scratch, out: builder._link(scratch, out, text, LIBRARY, []))
    return ctypes.CDLL(str(path))


@pytest.fixture
def folder(shared_cache):
    return shared_cache / "host"


class Steps:
    """The two kernels for a problem, and memory for them."""

    def __init__(self, folder, name, shape, dtype, options):
        self.kernel = catalogue().get(name)
        self.problem = self.kernel.problem(shape, dtype, options)
        self.product = ProductTask(self.kernel, self.problem, 4)
        macros = tuple(sorted(definitions(self.kernel, self.problem).items()))
        self.libraries = {entry: library(folder, entry, macros) for entry in ("keep_rows", "check_rows")}
        self.verdict = _Verdict()
        self.memory = np.zeros(self.product.memory_bytes + 16, np.uint8)

    def task(self, arrays, scalars):
        task = self.product.of_launch([one.ctypes.data for one in arrays], scalars)
        self.product.of_memory(task, self.memory.ctypes.data, ctypes.addressof(self.verdict))
        return task

    def run(self, entry, task):
        columns = -(-ROWS * task.columns // 256)
        grid = (self.product.tiles, self.product.slices) if entry == "check_rows" else (columns, 1)
        cells = (ctypes.c_void_p * 1)(ctypes.addressof(task))
        self.libraries[entry].host_library_launch((ctypes.c_uint * 6)(*grid, 1, 256, 1, 1), cells)

    def judged(self, task):
        self.run("check_rows", task)
        assert self.verdict.state == 1
        assert not self.memory[: self.product.counters_bytes].any()  # as before, for the next check
        return self.verdict


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_wrong_component_is_found_and_right_ones_are_not(folder, dtype, trans_b):
    steps = Steps(folder, "gemm", {"m": M, "n": N, "k": K}, dtype, {"trans_b": trans_b})
    generator = np.random.default_rng(4)
    a, b = generator.standard_normal((M, K)).astype(dtype), generator.standard_normal((K, N)).astype(dtype)
    c = (a.astype(float) @ b.astype(float)).astype(dtype)
    placed = np.ascontiguousarray(b.T) if trans_b else b
    task = steps.task([a, placed, c], [1.0, 0.0])
    assert steps.judged(task).wrong == 0
    steps.verdict.state = 0
    c[M - 1, 5] += 0.5
    found = steps.judged(task)
    assert (found.wrong, found.row, found.column) == (1, M - 1, 5)
    assert found.got - found.expected == pytest.approx(0.5, abs=0.05)
    steps.verdict.state = 0
    c[0, :] = np.nan
    assert steps.judged(task).wrong == N + 1


INF, NAN = float("inf"), float("nan")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_that_overflow_are_judged_beside_others(folder, dtype):
    steps = Steps(folder, "gemm", {"m": M, "n": N, "k": K}, dtype, {})
    generator = np.random.default_rng(4)
    a, b = generator.standard_normal((M, K)).astype(dtype), generator.standard_normal((K, N)).astype(dtype)
    b[:, 3] = 1e30
    a[0], a[-1] = 1e30, -1e30
    row = (M - 1) // 15  # the second that is looked at
    a[row, ::2], a[row, 1::2] = 1e31, -1e30
    with np.errstate(over="ignore"):
        c = (a.astype(float) @ b.astype(float)).astype(np.float32).astype(dtype)
    for where, right, wrong in [
        (0, [INF], [NAN, -INF, 0.0]),
        (M - 1, [-INF], [NAN, INF, 3e38]),
        (row, [INF, -INF, NAN], [1.0, -3e38]),
    ]:
        for result, is_right in [*((one, True) for one in right), *((one, False) for one in wrong)]:
            before, c[where, 3] = c[where, 3], result
            steps.verdict.state = 0
            assert steps.judged(steps.task([a, b, c], [1.0, 0.0])).wrong == (not is_right), (where, result)
            c[where, 3] = before
    c[0, 4] = NAN  # 1e30 times numbers of ordinary size: far from overflowing
    steps.verdict.state = 0
    found = steps.judged(steps.task([a, b, c], [1.0, 0.0]))
    assert (found.wrong, found.row, found.column) == (1, 0, 4)


def test_what_overflows_before_a_small_alpha_may_be_infinite_or_right(folder):
    steps = Steps(folder, "gemm", {"m": M, "n": N, "k": K}, "float32", {})
    a, b = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    a[0] = 1e38
    c = (0.01 * (a.astype(float) @ b)).astype(np.float32)
    for result, is_right in [(c[0, 5], True), (INF, True), (NAN, False), (-INF, False), (1.0, False)]:
        c[0, 5] = result
        steps.verdict.state = 0
        assert steps.judged(steps.task([a, b, c], [0.01, 0.0])).wrong == (not is_right), result


@pytest.mark.parametrize("number", [INF, NAN])
def test_inputs_that_are_not_finite_are_not_judged_and_those_beside_them_are(folder, number):
    steps = Steps(folder, "gemm", {"m": M, "n": N, "k": K}, "float32", {})
    a, b = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    b[7, 2] = number
    c = np.full((M, N), float(K), np.float32)
    assert steps.judged(steps.task([a, b, c], [1.0, 0.0])).wrong == 0
    c[M - 1, 3] = NAN
    steps.verdict.state = 0
    assert steps.judged(steps.task([a, b, c], [1.0, 0.0])).wrong == 1


def test_launches_that_overlap_have_tasks_of_their_own():
    kernel = catalogue().get("gemm")
    product = ProductTask(kernel, kernel.problem({"m": M, "n": N, "k": K}), 4)
    first, second = product.of_launch([16, 32, 48], [2.0, 0.0]), product.of_launch([160, 320, 480], [3.0, 0.0])
    assert [(one.a, one.alpha) for one in (first, second)] == [(16, 2.0), (160, 3.0)]


@given(
    st.tuples(st.integers(1, 70), st.integers(1, 5000), st.integers(1, 20000)),
    st.sampled_from(["float32", "float64", "float16"]),
    st.booleans(),
    st.integers(1, 200),
)
def test_parts_of_the_checks_memory_lie_one_after_the_other(sizes, dtype, beta_zero, multiprocessors):
    kernel = catalogue().get("gemm")
    problem = kernel.problem(dict(zip("mnk", sizes, strict=True)), dtype, {"beta_zero": beta_zero})
    product = ProductTask(kernel, problem, multiprocessors)
    task, device = product.of_launch([0, 0, 0], [1.0, 1.0]), 1 << 30
    product.of_memory(task, device, 0)
    begins = [device, task.slices_done, task.sums, task.kept]
    kept = ROWS * task.columns * problem.item_bytes * (not beta_zero)
    sums = 2 * ROWS * task.columns * product.slices * max(4, problem.item_bytes)
    ends = [device + 4, task.slices_done + 4 * product.tiles, task.sums + sums, task.kept + kept]
    for end, begin in zip(ends, [*begins[1:], device + product.memory_bytes], strict=True):
        assert 0 <= begin - end < 16
    assert not any(begin % 16 for begin in begins)
    assert (product.slices - 1) * task.slice < task.terms <= product.slices * task.slice


def test_an_output_that_is_read_counts_as_it_was_before(folder):
    steps = Steps(folder, "gemm", {"m": M, "n": N, "k": K}, "float32", {"beta_zero": False})
    generator = np.random.default_rng(4)
    a, b, c = (generator.standard_normal(s).astype(np.float32) for s in [(M, K), (K, N), (M, N)])
    task = steps.task([a, b, c], [0.5, 3.0])
    steps.run("keep_rows", task)
    c[:] = 0.5 * (a.astype(float) @ b) + 3 * c.astype(float)
    assert steps.judged(task).wrong == 0


@pytest.mark.parametrize(
    "activation", ["none", "relu", *(pytest.param(name, marks=EXHAUSTIVE) for name in ("sigmoid", "tanh")), "gelu"]
)
def test_a_layer_has_a_bias_and_an_activation(folder, activation):
    steps = Steps(folder, "linear", {"m": M, "n": N, "k": K}, "float32", {"activation": activation})
    generator = np.random.default_rng(4)
    x, w, bias = (generator.standard_normal(s).astype(np.float32) for s in [(M, K), (N, K), (N,)])
    z = x.astype(float) @ w.T.astype(float) + bias
    functions = {
        "none": lambda z: z,
        "relu": lambda z: np.maximum(z, 0),
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "tanh": np.tanh,
        "gelu": np.vectorize(lambda z: z * 0.5 * (1 + erf(z / 2**0.5))),
    }
    y = functions[activation](z).astype(np.float32)
    task = steps.task([x, w, bias, y], [])
    assert steps.judged(task).wrong == 0
    steps.verdict.state = 0
    y[0, 3] += 0.25
    assert steps.judged(task).wrong == 1


@pytest.mark.parametrize("trans_a", [False, True])
def test_a_product_with_a_vector_is_one_row(folder, trans_a):
    steps = Steps(folder, "gemv", {"m": M, "n": K}, "float32", {"trans_a": trans_a})
    generator = np.random.default_rng(4)
    a, x = generator.standard_normal((M, K)).astype(np.float32), generator.standard_normal(K).astype(np.float32)
    y = (a.astype(float) @ x).astype(np.float32)
    placed = np.ascontiguousarray(a.T) if trans_a else a  # named: its memory must stay
    task = steps.task([placed, x, y], [1.0, 0.0])
    assert steps.judged(task).wrong == 0
    steps.verdict.state = 0
    y[7] += 0.5
    assert steps.judged(task).wrong == 1
