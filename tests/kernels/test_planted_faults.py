"""What verification on the CPU device finds: planted faults, and relations that need no reference and no tolerance."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from faulty_kernels import with_change

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.devices.cpu import bench as cpu_bench
from tilewright.tuner.errors import TrialFailure

FAULTS = json.loads((Path(__file__).parents[1] / "data" / "planted_faults.json").read_text())
SHAPES = {
    "gemv": {"m": 53, "n": 71},
    "linear_gated": {"m": 17, "n": 40, "k": 64},
    "linear_quantized": {"m": 3, "n": 64, "k": 256},
    "conv2d": {
        "batch": 2,
        "height": 7,
        "width": 9,
        "channels": 8,
        "filters": 12,
        "kernel_h": 3,
        "kernel_w": 3,
        "padding": 1,
    },
} | {name: {"m": 37, "n": 41, "k": 67} for name in ("gemm", "linear")}
ROWS = {"m": 19, "n": 203}
IN_EVERY_RUN = {"B clamped above 1e5", "maximum starts at 0", "wrong every 50th launch", "one array", "eps hard-coded"}


def is_found(bench, configuration):
    """Whether a job would refuse the configuration."""
    try:
        return not all(one.is_right for one in bench.verify_each_kind(bench.compile(configuration)))
    except TrialFailure:
        return True


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            marks=[] if fault["what"] in IN_EVERY_RUN else pytest.mark.exhaustive,
            id=f"{fault['kernel']}-{fault['what']}",
        )
        for fault in FAULTS
    ],
)
def test_a_planted_fault_is_found(device, tmp_path, fault):
    file = "../" + fault["file"].removeprefix("include/")
    kernel = with_change(catalogue().get(fault["kernel"]), tmp_path, file, fault["old"], fault["new"], most=1)
    shape = fault.get("shape") or SHAPES.get(kernel.name, ROWS)
    problem = kernel.problem(shape, fault.get("dtype", "float32"), fault.get("options", {}))
    configuration = kernel.space(problem, device.model.limits, only=[fault["variant"]]).defaults()[0]
    with closing(device.bench(kernel, problem, seed=5)) as bench:
        assert is_found(bench, configuration), fault["what"]


GEMM, GEMV, SOFTMAX = (catalogue().get(name) for name in ("gemm", "gemv", "softmax"))
PROBLEMS = {
    "gemm": GEMM.problem({"m": 37, "n": 41, "k": 67}),
    "gemv": GEMV.problem({"m": 53, "n": 72}),  # rows that begin alike: else the order of sums depends on the row
    "softmax": SOFTMAX.problem({"m": 19, "n": 203}),
}
PRODUCTS = [("gemm", name) for name in ("naive", "tiled", "wpt")]
PRODUCTS += [("gemv", name) for name in ("naive", "warp", "block", "vectorized", "split")]

RELATED_ROWS = [("softmax", name) for name in ("warp", "block", "online")]


@pytest.fixture
def computed(device, monkeypatch):
    """What the start of a variant computes from these arrays, twice."""

    def computed(name, variant, arrays):
        monkeypatch.setattr(cpu_bench, "random_arrays", lambda *_: dict(arrays))
        kernel, problem = catalogue().get(name), PROBLEMS[name]
        configuration = kernel.space(problem, device.model.limits, only=[variant]).defaults()[0]
        with closing(device.bench(kernel, problem, seed=1)) as bench:
            first, second = (outputs[kernel.output.name] for outputs in bench.results(configuration))
        np.testing.assert_array_equal(first, second)
        return first

    return computed


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("name", "variant"), PRODUCTS)
def test_lines_times_powers_of_two_give_results_times_these_bit_for_bit(computed, name, variant):
    arrays = random_arrays(catalogue().get(name), PROBLEMS[name], 7)
    generator = np.random.default_rng(7)
    rows = generator.integers(-20, 20, (len(arrays["A"]), 1), endpoint=True)
    scaled = arrays | {"A": np.ldexp(arrays["A"], rows)}
    columns = np.zeros(1, np.int64)
    if name == "gemm":
        columns = generator.integers(-20, 20, arrays["B"].shape[1], endpoint=True)
        scaled["B"] = np.ldexp(arrays["B"], columns)
    exponents = (rows + columns).reshape(-1) if name == "gemv" else rows + columns
    expected = np.ldexp(computed(name, variant, arrays), exponents)
    np.testing.assert_array_equal(computed(name, variant, scaled), expected)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("name", "variant"), [*PRODUCTS, *RELATED_ROWS])
def test_rows_in_another_order_give_results_in_that_order(computed, name, variant):
    arrays = random_arrays(catalogue().get(name), PROBLEMS[name], 7)
    first = "X" if name == "softmax" else "A"
    order = np.random.default_rng(7).permutation(len(arrays[first]))
    moved = computed(name, variant, arrays | {first: arrays[first][order]})
    np.testing.assert_array_equal(moved, computed(name, variant, arrays)[order])
