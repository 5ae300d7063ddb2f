"""The variant `held` of linear_quantized: on the host, what it takes, where searches begin."""

import random

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, assert_resources_suffice, needs_nvrtc, verified

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.linear_quantized import held_space as space
from tilewright.kernels.space import Configuration

KERNEL = catalogue().get("linear_quantized")
NAMES = ("WARPS_K", "WARPS_N", "DEPTH", "SPLIT", "ROUNDS")
EXHAUSTIVE = pytest.mark.exhaustive


def problem_of(m, n, k, weights="int4", dtype="bfloat16", group="128", *, kernel=KERNEL):
    return kernel.problem({"m": m, "n": n, "k": k}, dtype, {"weights": weights, "group": group})


def feasible(problem):
    return list(KERNEL.space(problem, H200, ["held"]).feasible)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose products work on the host."""
    return tensor_on_host(KERNEL, [space.HELD], tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ((2, 2, 3, 1, 3), (16, 92, 512, "int4", "bfloat16")),  # the last fragment is cut off
        ((2, 2, 2, 1, 1), (9, 50, 512, "int4_zeros", "float16")),
        pytest.param((4, 1, 2, 1, 2), (13, 33, 1024, "int4", "float16", "row"), marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_x_is_multiplied_from_registers(hosted, device, values, sizes):
    configuration = Configuration.of("held", dict(zip(NAMES, values, strict=True)))
    assert verified(device, hosted, problem_of(*sizes, kernel=hosted), configuration).wrong == 0


@pytest.mark.parametrize(
    ("problem", "is_taken"),
    [
        (problem_of(8, 512, 512), False),
        (problem_of(9, 512, 512), True),
        (problem_of(17, 512, 512), False),
        (problem_of(16, 512, 512, "int8"), False),
        (problem_of(16, 512, 384), False),  # no warps have the same whole lines of three steps
        (problem_of(16, 28672, 8192), False),  # sums of so many rows fill shared memory
    ],
    ids=str,
)
def test_what_has_a_configuration_is_taken(problem, is_taken):
    assert space.HELD.admits(problem, H200) is is_taken
    assert bool(space.HELD.supports(problem) and feasible(problem)) is is_taken


@pytest.mark.parametrize("weights", ["int4", "int4_zeros"])
@pytest.mark.parametrize("sizes", [(14336, 4096), (4096, 4096), (4096, 14336), (6144, 4096), (5120, 5120)], ids=str)
def test_a_search_can_begin_where_it_should(sizes, weights):
    problem = problem_of(16, *sizes, weights)
    assert Configuration.of("held", space.start(problem, H200)) in feasible(problem)


@needs_nvrtc
@pytest.mark.parametrize("sizes", [(16, 14336, 4096), (9, 4096, 14336, "int4_zeros", "float16", "row")], ids=str)
def test_registers_suffice_by_estimate(sizes):
    problem = problem_of(*sizes)
    for configuration in random.Random(str(sizes)).sample(feasible(problem), 2):
        assert_resources_suffice(KERNEL, problem, configuration, H200)
