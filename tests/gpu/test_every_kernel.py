"""Every variant and dtype at some of twelve shapes and options, by both compilers; make gpu-check does them all."""

import random
from collections import Counter

import gpu_check
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.local import open_device

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["nvrtc", "pycuda"])
def device(gpu, request):
    device = open_device("cuda:0", request.param)
    yield device
    device.close()


def served(kernel, problems, limits):
    """Variants and dtypes with a feasible configuration for one of the problems."""
    found = set()
    for problem in problems:
        for variant in kernel.usable_variants(problem, limits):
            pair = f"{variant.name} {problem.dtype}"
            if pair not in found and len(kernel.space(problem, limits, [variant.name])):
                found.add(pair)
    return found


def some_problems(kernel, problems, limits, least):
    """The first in random order, and those after them by which every variant serves two in each of its dtypes."""
    wanted, chosen, met = served(kernel, problems, limits), [], Counter()
    for problem in random.Random(3).sample(problems, len(problems)):
        rare = {pair for pair in wanted if met[pair] < 2}
        if len(chosen) >= least and not rare:
            break
        pairs = served(kernel, [problem], limits)
        if len(chosen) < least or pairs & rare:
            chosen.append(problem)
            met.update(pairs)
    return chosen


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_default_and_random_configurations_are_right(device, kernel):
    limits, everything = device.model.limits, list(gpu_check.problems(kernel))
    least = 60 if device.environment.compiler == "nvrtc" else 4  # nvcc takes 30 times as long
    chosen = some_problems(kernel, everything, limits, least)
    counts, failures = gpu_check.check(device, kernel, chosen, 1, random.Random(2))
    assert failures == []
    assert set(counts) == served(kernel, everything, limits)
