"""linear_quantized: its reference, both variants on the host, its limits."""

import random
from dataclasses import replace

import numpy as np
import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, needs_nvrtc, verified
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.linear_quantized.declaration import TENSOR
from tilewright.kernels.linear_quantized.quantise import quantised
from tilewright.kernels.linear_quantized.reference import dequantised, random_weights, scales_shape, weights_shape
from tilewright.kernels.linear_quantized.streamed_space import STREAMED
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compiler import compile_nvrtc

KERNEL = catalogue().get("linear_quantized")
EXHAUSTIVE = pytest.mark.exhaustive
NAMES = ("WARPS_K", "WARPS_N", "ROWS", "UNROLL", "DEPTH", "SPLIT", "DIVIDE", "ROUNDS")
STREAMS = [
    ((4, 1, 1, 2, 2, 1, 1, 3), ("bfloat16", "int4", "128", 1, 130, 1024)),  # three tiles, the last one cut off
    ((1, 5, 1, 4, 2, 1, 1, 1), ("float16", "int4_zeros", "128", 3, 75, 512)),
    ((2, 2, 2, 1, 2, 1, 1, 2), ("bfloat16", "int8", "128", 4, 100, 640)),  # uneven parts of k
    pytest.param((1, 4, 1, 1, 2, 1, 2, 1), ("float16", "int8", "row", 20, 33, 384), marks=EXHAUSTIVE),
    pytest.param((2, 3, 1, 2, 2, 1, 1, 1), ("bfloat16", "int4_zeros", "row", 5, 47, 512), marks=EXHAUSTIVE),
]
CASES = [
    ("bfloat16", "int8", "128", (1, 33, 256)),
    ("float16", "int4", "128", (3, 40, 384)),
    ("bfloat16", "int4_zeros", "128", (9, 17, 640)),
    pytest.param("float16", "int8", "row", (17, 50, 384), marks=EXHAUSTIVE),
    pytest.param("bfloat16", "int4", "row", (64, 16, 128), marks=EXHAUSTIVE),
    pytest.param("float16", "int4_zeros", "row", (8, 1, 256), marks=EXHAUSTIVE),
]


def problem_of(kernel, dtype, weights, group, sizes):
    return kernel.problem(dict(zip("mnk", sizes, strict=True)), dtype, {"weights": weights, "group": group})


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with the variants on tensor cores alone, whose products work on the host."""
    return tensor_on_host(KERNEL, [TENSOR, STREAMED], tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(("dtype", "weights", "group", "sizes"), CASES, ids=str)
def test_rows_are_right_on_cuda_cores(device, dtype, weights, group, sizes):
    problem = problem_of(KERNEL, dtype, weights, group, sizes)
    feasible = KERNEL.space(problem, device.model.limits, only=["rows"]).feasible
    configuration = random.Random(str(sizes)).choice(feasible)
    assert verified(device, KERNEL, problem, configuration).wrong == 0, configuration


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("dtype", "weights", "group", "sizes"), CASES, ids=str)
def test_products_are_right_on_tensor_cores(hosted, device, dtype, weights, group, sizes):
    problem = problem_of(hosted, dtype, weights, group, sizes)
    for variant in ("tensor", "streamed"):
        feasible = hosted.space(problem, device.model.limits, only=[variant]).feasible
        configuration = random.Random(str(sizes)).choice(feasible)
        assert verified(device, hosted, problem, configuration).wrong == 0, configuration


def every_weight(first):
    """Inputs whose products are weights: every whole number at each of 64 places from `first` on, scales of 1."""

    def inputs(problem, _generator):
        m, n, k = (problem.shape[axis] for axis in "mnk")
        whole = (np.arange(n)[:, None] + 37 * np.arange(k * (1 if problem.options["weights"] == "int8" else 0.5))) % 256
        scales = np.ones(scales_shape(problem))
        if problem.options["weights"] == "int4_zeros":
            scales[..., 1] = np.arange(n)[:, None] % 16
        kind = np.int8 if problem.options["weights"] == "int8" else np.uint8
        return {"X": np.eye(m, k, first), "W": whole.astype(np.uint8).view(kind), "S": scales}

    return inputs


@pytest.mark.parametrize(("weights", "dtype"), [("int8", "bfloat16"), ("int4", "float16"), ("int4_zeros", "bfloat16")])
def test_every_weight_is_multiplied_exactly(hosted, device, weights, dtype):
    problem = problem_of(hosted, dtype, weights, "128", (64, 256, 128))
    configuration = hosted.space(problem, device.model.limits, only=["tensor"]).feasible[0]
    for first in (0, 64):
        kernel = replace(hosted, inputs=every_weight(first))
        assert verified(device, kernel, problem, configuration).wrong == 0


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("values", "sizes"), STREAMS, ids=str)
def test_weights_come_by_rings_of_every_kind(hosted, device, values, sizes):
    dtype, weights, group, *shape = sizes
    problem = problem_of(hosted, dtype, weights, group, shape)
    configuration = Configuration.of("streamed", dict(zip(NAMES, values, strict=True)))
    assert verified(device, hosted, problem, configuration).wrong == 0


@needs_nvrtc
@pytest.mark.parametrize("variant", ["tensor", "streamed", "streamed_sm90"])
@pytest.mark.parametrize(("dtype", "weights", "m"), [("bfloat16", "int8", 64), ("float16", "int4_zeros", 16)])
def test_registers_suffice_by_estimate(variant, dtype, weights, m):
    problem = problem_of(KERNEL, dtype, weights, "128", (m, 4096, 4096))
    feasible = KERNEL.space(problem, H200, only=[variant]).feasible
    for configuration in random.Random(m).sample(list(feasible), 1):
        definitions = KERNEL.definitions(problem, configuration)
        resources = compile_nvrtc(KERNEL.source(variant), definitions, "sm_90a", KERNEL.entry).resources
        assert resources.spill_bytes == 0, configuration


def test_blocks_share_the_device_evenly():
    problem = problem_of(KERNEL, "bfloat16", "int4", "128", (1, 14336, 4096))
    for configuration in random.Random(1).sample(list(KERNEL.space(problem, H200, only=["streamed"]).feasible), 50):
        launch = STREAMED.launch(configuration.values, problem)
        blocks = -(-launch.grid[0] // H200.multiprocessors)  # of a multiprocessor, all there at once
        assert blocks * (launch.shared_bytes + 1024) <= H200.shared_bytes_per_multiprocessor
        covered = blocks * H200.multiprocessors * 16 * configuration.values.ROWS * configuration.values.WARPS_N
        share = 14336 * configuration.values.SPLIT / (covered * configuration.values.ROUNDS)
        assert share >= 0.75 or (blocks == 1 and configuration.values.ROUNDS == 1), configuration


def test_an_x_that_fits_no_block_is_left_to_the_other_variants():
    problem = problem_of(KERNEL, "bfloat16", "int4", "128", (64, 256, 128 * 1024))
    assert not STREAMED.admits(problem, H200)
    assert [variant.name for variant in KERNEL.usable_variants(problem, H200)] == ["rows", "tensor", "streamed_sm90"]


@pytest.mark.parametrize(
    ("weights", "stored", "zero", "expected"),
    [
        ("int8", [-128, 5], None, [-64.0, 2.5]),
        ("int4", [0x7F], None, [3.5, -0.5]),
        ("int4_zeros", [0x7F], 3, [6.0, 2.0]),
    ],
)
def test_weights_stand_for_scaled_whole_numbers(weights, stored, zero, expected):
    problem = replace(problem_of(KERNEL, "float16", weights, "row", (1, 1, 128)), axes=(("m", 1), ("n", 1), ("k", 2)))
    scales = [[0.5]] if zero is None else [[[0.5, zero]]]
    arrays = {"W": np.array([stored], np.int8 if weights == "int8" else np.uint8), "S": np.array(scales)}
    assert dequantised(problem, arrays).tolist() == [expected]


def test_zero_points_are_drawn_as_whole_numbers():
    problem = problem_of(KERNEL, "bfloat16", "int4_zeros", "128", (1, 64, 512))
    drawn = random_weights(problem, np.random.default_rng(0))
    assert set(np.unique(drawn["S"][..., 1])) <= set(range(16))
    assert drawn["W"].shape == (64, 256)


@pytest.mark.parametrize(("sizes", "field"), [((65, 16, 128), "shape.m"), ((1, 16, 200), "shape.k")])
def test_shapes_that_cannot_be_computed_name_the_axis(sizes, field):
    with pytest.raises(InvalidProblemError) as raised:
        problem_of(KERNEL, "bfloat16", "int8", "128", sizes)
    assert raised.value.field == field


STEPS = {"int8": 127, "int4": 7, "int4_zeros": 15}


def weights_of(seed, n, k, spread):
    generator = np.random.default_rng(seed)
    return generator.normal(scale=generator.uniform(0.1, 10.0, (n, 1)), size=(n, k)) + generator.normal(scale=spread)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    spread=st.sampled_from([0.0, 5.0]),
    kind=st.sampled_from(sorted(STEPS)),
    group=st.sampled_from(["128", "row"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
)
def test_every_weight_is_within_half_a_step(seed, sizes, spread, kind, group, dtype):
    n, groups = sizes
    k = 128 * groups
    weights = weights_of(seed, n, k, spread)
    whole, scales = quantised(weights, kind, group, dtype)
    problem = KERNEL.problem({"m": 1, "n": n, "k": k}, dtype, {"weights": kind, "group": group})
    assert whole.shape == weights_shape(problem)
    assert scales.shape == scales_shape(problem)
    assert scales.dtype == np.dtype(dtype)
    lines = weights.reshape(n, 1 if group == "row" else groups, -1)
    least = np.minimum(lines.min(axis=-1, keepdims=True), 0)
    span = (
        lines.max(axis=-1, keepdims=True).clip(min=0) - least
        if kind == "int4_zeros"
        else abs(lines).max(-1, keepdims=True)
    )
    # A rounded scale moves the outermost multiple; a rounded zero point moves all by half a step.
    scale = span / STEPS[kind]
    allowed = (1.0 if kind == "int4_zeros" else 0.5) * scale + 2 * UNIT_ROUNDOFF[dtype] * span
    error = abs(dequantised(problem, {"W": whole, "S": scales}).reshape(lines.shape) - lines)
    assert (error <= allowed).all()


@pytest.mark.parametrize("kind", sorted(STEPS))
def test_what_stands_on_the_grid_is_kept(kind):
    low, high = {"int8": (-127, 127), "int4": (-7, 7), "int4_zeros": (-3, 12)}[kind]
    weights = np.resize(np.arange(low, high + 1), (2, 256)) * 0.25
    weights[:, -1] = high * 0.25
    whole, scales = quantised(weights, kind, "row", "float16")
    problem = KERNEL.problem({"m": 1, "n": 2, "k": 256}, "float16", {"weights": kind, "group": "row"})
    assert (dequantised(problem, {"W": whole, "S": scales}) == weights).all()


@pytest.mark.parametrize("kind", sorted(STEPS))
def test_a_group_of_zeros_stands_for_zeros(kind):
    whole, scales = quantised(np.zeros((1, 128)), kind, "128", "bfloat16")
    problem = KERNEL.problem({"m": 1, "n": 1, "k": 128}, "bfloat16", {"weights": kind, "group": "128"})
    assert not dequantised(problem, {"W": whole, "S": scales}).any()


@pytest.mark.parametrize(
    ("weights", "dtype", "said"),
    [
        (np.ones((1, 100)), "float16", "multiple of 128"),
        (np.full((1, 128), np.nan), "float16", "infinity or a NaN"),
        (np.full((1, 128), 1e30), "float16", "too large for float16"),
    ],
)
def test_weights_that_cannot_be_quantised_say_why(weights, dtype, said):
    with pytest.raises(ValueError, match=said):
        quantised(weights, "int8", "128", dtype)
