"""Every way in which matrices may lie passes the compiler's front end: a tenth of a second each, and no GPU."""

from __future__ import annotations

import itertools
import random

import pytest
from contracts.variant import needs_nvrtc
from sampling import sampled

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.own import limits_of
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS

pytestmark = needs_nvrtc
HOPPER = limits_of((9, 0))
EVEN, ODD = {"m": 192, "n": 160, "k": 256}, {"m": 193, "n": 161, "k": 255}
PLACEMENTS = {
    "rows of 16 bytes": (EVEN, None, None),
    "odd rows": (ODD, None, None),
    "odd distances of rows": (EVEN, 3, None),
    "one matrix for all": (ODD, 3, 0),
    "matrices that start anywhere": (EVEN, 0, 1),
    "matrices that start at 8 bytes": (EVEN, 4, 2),
}
"""Sizes; elements between the rows of A, B and C; between their matrices, 0 where the products share A and B."""

TWO_WAYS = "SHARED_A"
"""A parameter by which operands change places, where a variant has it: both values are compiled."""

LAYOUTS = list(itertools.product((False, True), repeat=2))


def placed(sizes, options, row_gap, matrix_gap):
    """The shape with the optional axes that say so."""
    shape = dict(sizes)
    for matrix in "abc":
        rows, length = stored_rows(matrix, sizes, options)
        if row_gap is not None:
            shape[f"ld{matrix}"] = length + row_gap
        if matrix_gap is not None:
            apart = rows * (length + row_gap) + matrix_gap
            shape |= {"batch": 3, f"stride_{matrix}": 0 if matrix_gap == 0 and matrix != "c" else apart}
    return shape


def problem_for(variant, shape, layout):
    """In the first dtype and accuracy that the variant has such a problem in; None where it has none."""
    options = dict(zip(("trans_a", "trans_b"), layout, strict=True))
    for dtype, accuracy in itertools.product(KERNEL.dtypes, ("fp32", "tf32")):
        try:
            problem = KERNEL.problem(shape, dtype, options | {"accuracy": accuracy})
        except InvalidProblemError:
            continue  # the accuracy is another dtype's
        if variant in KERNEL.usable_variants(problem, HOPPER):
            return problem
    return None


def is_hopper_split(variant_name, layout, _placement):
    """Of the variant that loads in the most ways both operands along k, and neither."""
    return variant_name == "tensor3xtf32_sm90" and layout in {(False, True), (True, False)}


@pytest.mark.parametrize(
    ("variant_name", "layout", "placement"),
    sampled(itertools.product((v.name for v in KERNEL.variants), LAYOUTS, PLACEMENTS), is_hopper_split),
)
def test_matrices_may_lie_in_any_way(variant_name, layout, placement):
    variant, (sizes, *gaps) = KERNEL.variant(variant_name), PLACEMENTS[placement]
    shape = placed(sizes, dict(zip(("trans_a", "trans_b"), layout, strict=True)), *gaps)
    problem = problem_for(variant, shape, layout)
    if problem is None:
        pytest.skip("no such problem of this variant")
    feasible = KERNEL.space(problem, HOPPER, only=[variant_name]).feasible
    ways = {}
    for configuration in random.Random(variant_name).sample(feasible, min(40, len(feasible))):
        ways.setdefault(dict(configuration.items).get(TWO_WAYS), configuration)
    options = ["--gpu-architecture=compute_90a", "--fdevice-syntax-only", *OPTIONS]
    for configuration in ways.values():
        definitions = [f"-D{name}={value}" for name, value in KERNEL.definitions(problem, configuration).items()]
        _, log = nvrtc.compile_cubin(KERNEL.source(variant_name), [*options, *definitions])
        assert "warning" not in log, log
