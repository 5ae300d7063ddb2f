"""tally: several outputs of several dtypes, one updated in place, numbers at run time, and inputs of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from contracts.partial_sums import PARTIAL_SUMS
from contracts.row_sum import ROW_SUM
from contracts.textured import TEXTURED

from tilewright.kernels.kernel import Kernel, Launch, Scalar, Tensor, Variant, shape_of
from tilewright.kernels.space import Configuration, choice

LIMIT = 5


def inputs(problem, generator):
    return {"keys": generator.integers(0, 10, problem.shape["n"], np.uint8)}


def reference(problem, arrays, scalars):
    keys = arrays["keys"].astype(np.int64)
    scaled = keys * np.float64(scalars["factor"])
    return {"scaled": scaled, "is_large": keys > scalars["limit"], "total": arrays["total"] + keys}


TALLY = Kernel(
    name="tally",
    doc="Dtypes of all sorts.",
    folder=Path(__file__).parents[1] / "tuner" / "mixed_kernels",
    axes=("n",),
    dtypes=("float32", "float64"),
    options=(),
    arguments=(
        Tensor("keys", "input", shape_of("n"), dtype="uint8"),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
        Scalar("factor", lambda _p: 0.5),
        Scalar("limit", lambda _p: LIMIT, dtype="int64"),
        Tensor("scaled", "output", shape_of("n")),
        Tensor("is_large", "output", shape_of("n"), dtype="int32"),
        Tensor("total", "inout", shape_of("n"), dtype="int64"),
    ),
    variants=(
        Variant(
            "plain",
            "tally.cu",
            lambda c, p: Launch((-(-p.shape["n"] // c.block_size), 1, 1), (c.block_size, 1, 1)),
            (choice("block_size", 64, 128), choice("BUG", 0, 1, 2, 3, 4)),
        ),
    ),
    flops=lambda p: 2 * p.shape["n"],
    bytes_moved=lambda p: 25 * p.shape["n"],
    reference=reference,
    inputs=inputs,
    example_shape={"n": 1000},
)

UNTOLD = replace(TALLY, name="untold", entry="tally", reference=None)
"""The same without a reference."""

KERNELS = {kernel.name: kernel for kernel in (PARTIAL_SUMS, ROW_SUM, TALLY, TEXTURED, UNTOLD)}
PROBLEM = TALLY.problem({"n": 1001})


def with_bug(number):
    return Configuration.of("plain", {"block_size": 64, "BUG": number})
