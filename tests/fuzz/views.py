"""Random batches and strides of a problem's matrices, for kernels that have such axes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue

BATCHES = (1, 1, 2, 3, 7)
ROW_GAPS = (0, 0, 1, 2, 3, 4, 8, 36)
MATRIX_GAPS = (0, 0, 1, 2, 4, 12)
TAKING_TURNS, SHARED = 0.2, 0.25
"""Shares of matrices: those whose rows lie between those of the others, and inputs of which a batch has one."""


def random_views(
    kernel: Kernel, shape: Mapping[str, int], options: Mapping[str, OptionValue], generator: random.Random
) -> dict[str, int]:
    """Optional axes for this shape: none for half of all problems, and for kernels without a batch."""
    if not any(axis.name == "batch" for axis in kernel.optional_axes) or generator.random() < 0.5:
        return {}
    views = {"batch": generator.choice(BATCHES)}
    for matrix in "abc":
        views |= _placed(matrix, stored_rows(matrix, shape, options), views["batch"], generator)
    return views


def _placed(matrix: str, rows: tuple[int, int], batch: int, generator: random.Random) -> dict[str, int]:
    count, length = rows
    lead = length + generator.choice((*ROW_GAPS, -length % 4))
    if batch == 1:
        return {f"ld{matrix}": lead}
    if generator.random() < TAKING_TURNS:
        stride = length + generator.choice((*MATRIX_GAPS, -length % 4))
        return {f"ld{matrix}": batch * stride + generator.choice(ROW_GAPS), f"stride_{matrix}": stride}
    if matrix != "c" and generator.random() < SHARED:
        return {f"ld{matrix}": lead, f"stride_{matrix}": 0}
    return {f"ld{matrix}": lead, f"stride_{matrix}": count * lead + generator.choice((*MATRIX_GAPS, -count * lead % 4))}
