"""Sweeps of which the unit tests take a sample (`make test-exhaustive` runs all), and shapes that kernels take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tilewright.kernels.errors import InvalidProblemError

EXHAUSTIVE = pytest.mark.exhaustive
"""The mark of a case that runs nightly, while others like it run with the unit tests."""


def sampled(cases: Iterable[Any], is_usual: Callable[..., bool]) -> list[Any]:
    """The cases, tuples or single values, as parameters; those that are not usual carry the mark `exhaustive`."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if is_usual(*case) else EXHAUSTIVE) for case in tuples]


def shape_or_example(kernel, shape):
    """The shape where it is a problem of the kernel, else that of its example."""
    try:
        kernel.problem(shape)
    except InvalidProblemError:
        return dict(kernel.example_shape)
    return shape
