"""The error bound that the option `accuracy` stands for."""

from __future__ import annotations

from tilewright.kernels.problem import Problem

TF32_ROUNDOFF = 2.0**-10
"""TF32 keeps 10 bits behind the leading one. Hardware may cut the rest off instead of rounding, so it is the whole
distance from 1 to the next number, not half of it."""


def admitted_roundoff(problem: Problem) -> float | None:
    """The unit roundoff that results are held to; None for the dtype's own, which `fp32` and `fp32-fma` both mean."""
    return TF32_ROUNDOFF if problem.options.get("accuracy") == "tf32" else None
