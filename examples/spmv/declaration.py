"""spmv: a sparse matrix in CSR, times a vector. Its shape is data: where rows begin, and which columns they have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Reference, Tensor, Variant, shape_of
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

BAND = 512
"""Columns lie at most so far from the diagonal, as in a matrix of a mesh."""


def launch(c: Values, p: Problem) -> Launch:
    """LANES threads for each row."""
    return Launch((-(-p.shape["m"] * c.LANES // c.BLOCK), 1, 1), (c.BLOCK, 1, 1))


def shared_bytes(c: Values, p: Problem) -> int:
    """The products under way, and the window."""
    return (c.BLOCK * c.ITEMS + max(c.WINDOW, 1)) * p.item_bytes + 16


def chunk_suits(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half the products at a time would not do for a block's rows."""
    return c.ITEMS == 4 or c.ITEMS * c.LANES * p.shape["m"] < 4 * p.shape["nnz"]


def inputs(problem: Problem, generator: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """Rows of uneven length, some empty, one in a hundred ten times as long; columns near the diagonal.

    The values and x are drawn by Tilewright. For a matrix of your own return its `indptr` and `indices`, and `values`.
    """
    m, n, nnz = (problem.shape[axis] for axis in ("m", "n", "nnz"))
    weight = generator.uniform(0, 1, m) * np.where(generator.random(m) < 0.01, 10, 1)
    ends = np.floor(np.cumsum(weight) / weight.sum() * nnz).astype(np.int64)
    ends[-1] = nnz
    row_start = np.concatenate([[0], ends])
    middle = np.repeat(np.arange(m) * n // m, np.diff(row_start))
    return {"row_start": row_start, "columns": np.clip(middle + generator.integers(-BAND, BAND, nnz), 0, n - 1)}


def reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the sum of the absolute values of the products."""
    m, lengths = problem.shape["m"], np.diff(arrays["row_start"])
    rows = np.repeat(np.arange(m), lengths)
    products = arrays["values"].astype(np.float64) * arrays["x"].astype(np.float64)[arrays["columns"]]
    value, magnitude = (np.bincount(rows, weights, minlength=m) for weights in (products, np.abs(products)))
    return Reference(value, magnitude, terms=max(1, int(lengths.max())))


def fault(p: Problem) -> tuple[str, str] | None:
    """More elements than the matrix has places."""
    return ("nnz", "is more than m n") if p.shape["nnz"] > p.shape["m"] * p.shape["n"] else None


def bytes_moved(p: Problem) -> int:
    """Every array once: x too, as columns near the diagonal find it in the cache."""
    return p.shape["nnz"] * (p.item_bytes + 4) + 4 * (p.shape["m"] + 1) + (p.shape["n"] + p.shape["m"]) * p.item_bytes


KERNEL = Kernel(
    name="spmv",
    doc="y = A x, A sparse and in CSR.",
    dtypes=("float32", "float64"),
    arguments=(
        Tensor("row_start", "input", lambda p: (p.shape["m"] + 1,), dtype="int32"),
        Tensor("columns", "input", shape_of("nnz"), dtype="int32"),
        Tensor("values", "input", shape_of("nnz")),
        Tensor("x", "input", shape_of("n")),
        Tensor("y", "output", shape_of("m")),
    ),
    variants=(
        Variant(
            name="row",
            doc="Threads read the row that they add up.",
            source="row.cu",
            launch=launch,
            parameters=(
                powers_of_two("BLOCK", 64, 1024, default=256, doc="threads of a block"),
                powers_of_two("LANES", 1, 32, default=8, doc="threads of a row"),
                powers_of_two("ITEMS", 1, 8, default=2, doc="products of a thread that are under way at a time"),
            ),
            constraints=(
                Constraint(
                    "half the threads of a row would not do for the mean row",
                    lambda c, p, _d: c.LANES * c.ITEMS == 1 or c.LANES * c.ITEMS * p.shape["m"] < 8 * p.shape["nnz"],
                ),
            ),
        ),
        Variant(
            name="stream",
            doc="A block reads its rows' elements as they lie; x near the diagonal is kept in shared memory.",
            source="stream.cu",
            launch=launch,
            parameters=(
                powers_of_two("BLOCK", 64, 1024, default=256, doc="threads of a block"),
                powers_of_two("LANES", 1, 8, default=1, doc="threads that add up a row"),
                choice("ITEMS", 4, 8, 12, 16, 20, 24, default=8, doc="products of a thread at a time"),
                choice("WINDOW", 0, 1024, 2048, 4096, default=2048, doc="elements of x in shared memory"),
            ),
            constraints=(
                Constraint("a chunk is not twice the block's share", chunk_suits),
                Constraint("the window is no longer than x", lambda c, p, _d: 2 * max(p.shape["n"], 512) > c.WINDOW),
            ),
            static_shared_bytes=shared_bytes,
        ),
    ),
    default_variant="stream",
    fault=fault,
    inputs=inputs,
    flops=lambda p: 2 * p.shape["nnz"],
    bytes_moved=bytes_moved,
    reference=reference,
    ranking_l2="cold",
    example_shape={"m": 1 << 20, "n": 1 << 20, "nnz": 1 << 24},
)
