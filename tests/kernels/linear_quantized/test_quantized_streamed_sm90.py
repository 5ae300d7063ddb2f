"""The variant `streamed_sm90` of linear_quantized: what it takes, where searches begin, what sources keep."""

import itertools
import random

import pytest
from contracts.variant import H200, assert_resources_suffice, needs_nvrtc

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import TensorMap
from tilewright.kernels.linear_quantized import streamed_sm90_space as space

KERNEL = catalogue().get("linear_quantized")
NAME = "streamed_sm90"


def problem_of(m, n, k, weights="int4", dtype="bfloat16"):
    return KERNEL.problem({"m": m, "n": n, "k": k}, dtype, {"weights": weights})


def feasible(problem):
    return list(KERNEL.space(problem, H200, [NAME]).feasible)


def test_boxes_are_128_bytes_of_the_tiles_rows_and_of_all_rows_of_x():
    values = space.STREAMED_SM90.space().default().values
    assert space.tensor_maps(values, problem_of(17, 512, 512)) == (
        TensorMap("W", (1, 64, 128)),
        TensorMap("X", (1, 32, 64)),
    )


def test_up_to_eight_rows_are_left_to_streamed():
    assert [space.STREAMED_SM90.admits(problem_of(m, 512, 512), H200) for m in (8, 9, 64)] == [False, True, True]


@pytest.mark.parametrize("weights", ["int8", "int4", "int4_zeros"])
def test_a_search_can_begin_where_it_should(weights):
    for m, (n, k) in itertools.product((9, 32, 64), ((4096, 4096), (14336, 4096), (4096, 14336), (64, 128), (99, 384))):
        problem = problem_of(m, n, k, weights)
        start = space.start(problem, H200)
        assert any(all(c.values[name] == start[name] for name in start) for c in feasible(problem)), (problem, start)


def test_no_warpgroup_waits_for_a_step_whose_place_it_holds_itself():
    problem = problem_of(16, 14336, 4096)
    for configuration in feasible(problem):
        held, own = space.stages(configuration.values, problem), -(-16 // configuration.values.SPLIT)
        assert held > configuration.values.PARTS or held >= own, configuration


@needs_nvrtc
@pytest.mark.parametrize(
    ("sizes", "weights", "dtype"),
    [
        ((16, 14336, 4096), "int4", "bfloat16"),
        ((64, 4096, 4096), "int8", "float16"),
        ((33, 684, 1152), "int4_zeros", "bfloat16"),
    ],
)
def test_configurations_compile_to_what_the_space_says(sizes, weights, dtype):
    problem = problem_of(*sizes, weights, dtype)
    for configuration in random.Random(str(sizes)).sample(feasible(problem), 2):
        assert_resources_suffice(KERNEL, problem, configuration, H200)
