"""The check that runs on a GPU, with its CUDA source compiled for the host: what it finds in a product."""

from __future__ import annotations

import ctypes
from math import erf

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, find_compiler, translation_unit
from tilewright.tuner.runtime.first_use.on_stream import _Verdict
from tilewright.tuner.runtime.first_use.product import ROWS, ProductTask, definitions, source

M, N, K = 45, 37, 150

STRUCT_ARGUMENT = "template <> struct host_letter<Task> { static constexpr char value = 's'; };"
"""The host's shim passes numbers and addresses; a structure needs a letter of its own."""


class Steps:
    """The three kernels for a problem, and memory for them."""

    def __init__(self, folder, name, shape, dtype, options):
        self.kernel = catalogue().get(name)
        self.problem = self.kernel.problem(shape, dtype, options)
        self.product = ProductTask(self.kernel, self.problem, 4)
        builder = HostBuilder(find_compiler(), folder)
        self.libraries = {}
        for entry in ("keep_rows", "sum_rows", "judge_rows"):
            text = (
                translation_unit(
                    builder.compiler,
                    [entry],
                    source() + STRUCT_ARGUMENT,
                    definitions(self.kernel, self.problem),
                    "rows.cu",
                )
                + (HOST_FOLDER / "library.inc").read_text()
            )
            path, _ = builder._kept(
                LIBRARY, text, "", lambda scratch, out, text=text: builder._link(scratch, out, text, LIBRARY, [])
            )
            self.libraries[entry] = ctypes.CDLL(str(path))
        self.verdict = _Verdict()
        self.counters = np.zeros(4, np.uint32)
        self.sums = np.zeros(self.product.sums_bytes, np.uint8)
        self.kept = np.zeros(self.product.kept_bytes + 16, np.uint8)

    def task(self, arrays, scalars):
        task = self.product.of_launch([one.ctypes.data for one in arrays], scalars)
        task.counters, task.verdict = self.counters.ctypes.data, ctypes.addressof(self.verdict)
        task.sums, task.kept = self.sums.ctypes.data, self.kept.ctypes.data
        return task

    def run(self, entry, task):
        columns = -(-ROWS * task.columns // 256)
        grid = (self.product.tiles, self.product.slices) if entry == "sum_rows" else (columns, 1)
        slices = ctypes.c_uint(self.product.slices)
        cells = (ctypes.c_void_p * 2)(ctypes.addressof(task), ctypes.addressof(slices))
        self.libraries[entry].host_library_launch((ctypes.c_uint * 6)(*grid, 1, 256, 1, 1), cells)

    def judged(self, task):
        self.run("sum_rows", task)
        self.run("judge_rows", task)
        assert self.verdict.state == 1
        assert not self.counters.any()  # as before, for the next check
        return self.verdict


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_wrong_component_is_found_and_right_ones_are_not(tmp_path, dtype, trans_b):
    steps = Steps(tmp_path, "gemm", {"m": M, "n": N, "k": K}, dtype, {"trans_b": trans_b})
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


def test_an_output_that_is_read_counts_as_it_was_before(tmp_path):
    steps = Steps(tmp_path, "gemm", {"m": M, "n": N, "k": K}, "float32", {"beta_zero": False})
    generator = np.random.default_rng(4)
    a, b, c = (generator.standard_normal(s).astype(np.float32) for s in [(M, K), (K, N), (M, N)])
    task = steps.task([a, b, c], [0.5, 3.0])
    steps.run("keep_rows", task)
    c[:] = 0.5 * (a.astype(float) @ b) + 3 * c.astype(float)
    assert steps.judged(task).wrong == 0


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid", "tanh", "gelu"])
def test_a_layer_has_a_bias_and_an_activation(tmp_path, activation):
    steps = Steps(tmp_path, "linear", {"m": M, "n": N, "k": K}, "float32", {"activation": activation})
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
def test_a_product_with_a_vector_is_one_row(tmp_path, trans_a):
    steps = Steps(tmp_path, "gemv", {"m": M, "n": K}, "float32", {"trans_a": trans_a})
    generator = np.random.default_rng(4)
    a, x = generator.standard_normal((M, K)).astype(np.float32), generator.standard_normal(K).astype(np.float32)
    y = (a.astype(float) @ x).astype(np.float32)
    placed = np.ascontiguousarray(a.T) if trans_a else a  # named: its memory must stay
    task = steps.task([placed, x, y], [1.0, 0.0])
    assert steps.judged(task).wrong == 0
    steps.verdict.state = 0
    y[7] += 0.5
    assert steps.judged(task).wrong == 1
