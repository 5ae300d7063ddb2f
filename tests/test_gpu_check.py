from __future__ import annotations

import gpu_check
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.own import limits_of

HOPPER = limits_of((9, 0))


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_twelve_shapes_bring_every_variant_to_problems_that_it_serves(kernel):
    assert len(gpu_check.shapes(kernel)) == 12
    problems = list(gpu_check.problems(kernel))
    for variant in kernel.variants:
        served = [problem for problem in problems if kernel.usable_variants(problem, HOPPER, [variant.name])]
        assert len({tuple(problem.shape.items()) for problem in served}) >= 2, variant.name
