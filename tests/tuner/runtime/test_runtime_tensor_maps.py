"""Tensor maps in the launcher: where they are among what a launch passes."""

import ctypes

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Launch
from tilewright.tuner.runtime.launches.loaded_kernel import LaunchArguments

GEMM = catalogue().get("gemm")


def test_maps_come_behind_all_other_parameters():
    variant = GEMM.variant("tensor_half_sm90")
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64}, "bfloat16")
    values = variant.space().default().values
    maps = variant.tensor_maps(values, problem)
    launch = Launch((1, 1, 1), (128, 1, 1))  # the variant's own overlaps, and whether it may the driver says
    words = LaunchArguments(GEMM, problem, [(ctypes.c_void_p(), launch)], scratch=1, maps=maps)
    _alpha, *_tensors, _beta, _c, _workspace, a, b, c = list(words.steps[0][2])
    assert len({a, b, c}) == 3
    assert all(place % 64 == 0 for place in (a, b, c))
    assert [len(list(LaunchArguments(GEMM, problem, [(ctypes.c_void_p(), launch)], scratch=1).steps[0][2]))] == [6]
