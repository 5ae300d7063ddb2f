"""Random problems that a variant serves, with a random configuration of it: what one compilation is for."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass

from fuzz.convolutions import is_quick
from fuzz.shapes import random_shape, random_views

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, SearchSpace

ATTEMPTS = 1000
"""Random problems until one is for a variant: some serve one dtype and one value of an option."""

SHARE_OF_DEFAULTS = 0.2
MOST_ON_CPU = 2_000_000
"""Operations of a launch on the CPU device, which takes a fraction of a second for them."""


@dataclass(frozen=True)
class Case:
    """A problem and a configuration for it."""

    problem: Problem
    configuration: Configuration


def random_case(kernel: Kernel, variant: Variant, limits: Limits, generator: random.Random) -> Case | None:
    """One case of the variant; None where it serves no random problem on such a device."""
    for _ in range(ATTEMPTS):
        problem = random_problem(kernel, generator)
        if problem is None or not variant.admits(problem, limits):
            continue
        if "ptx" not in limits.features and kernel.estimated_flops(problem) > MOST_ON_CPU:
            continue
        feasible = SearchSpace((variant.space(),), problem, limits).feasible
        if not feasible:
            continue
        default = variant.space().default()
        is_default = default in feasible and generator.random() < SHARE_OF_DEFAULTS
        return Case(problem, default if is_default else generator.choice(feasible))
    return None


def random_problem(kernel: Kernel, generator: random.Random) -> Problem | None:
    """A shape with views, a dtype and options; None where they do not fit each other."""
    options = {option.name: generator.choice(option.values) for option in kernel.options}
    dtype = generator.choice(kernel.dtypes)
    shape = random_shape(kernel, generator)
    shape |= random_views(kernel, shape, options, generator)
    for option in kernel.options:
        if option.only_dtypes and dtype not in option.only_dtypes:
            options[option.name] = option.default
    with contextlib.suppress(InvalidProblemError):
        problem = kernel.problem(shape, dtype, options)
        return problem if kernel.name != "conv2d" or is_quick(problem) else None
    return None
