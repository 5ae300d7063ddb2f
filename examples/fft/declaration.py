"""fft: the Fourier transforms of many short rows."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Reference, Tensor, Variant, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

SHORTEST, LONGEST = 16, 4096
CHUNK = 64  # rows that a thread of the reference has in the cache at a time


def stages(p: Problem) -> int:
    """Of radix 2: the logarithm of n."""
    return p.shape["n"].bit_length() - 1


def launch(c: Values, p: Problem) -> Launch:
    """A block for ROWS rows, whose real and imaginary parts are in shared memory."""
    n = p.shape["n"]
    shared = 2 * c.ROWS * (n + n // 32 * c.PADDING) * p.item_bytes
    return Launch((-(-p.shape["m"] // c.ROWS), 1, 1), (n // c.RADIX, c.ROWS, 1), shared)


def inputs(problem: Problem, _generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """The roots of unity; x is drawn by Tilewright."""
    angle = -2 * np.pi * np.arange(problem.shape["n"]) / problem.shape["n"]
    return {"roots": np.stack([np.cos(angle), np.sin(angle)], axis=1)}


def reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the sum of the absolute values of a row."""
    x = arrays["x"]
    value, sums = np.empty(x.shape), np.empty((len(x), 1, 1))

    def transform(first: int) -> None:
        own = slice(first, first + CHUNK)
        row = x[own].astype(np.float64).view(np.complex128)[..., 0]
        value[own] = np.fft.fft(row, axis=1).view(np.float64).reshape(*row.shape, 2)
        sums[own, 0, 0] = np.abs(row).sum(axis=1)

    with ThreadPoolExecutor() as pool:  # NumPy computes without the interpreter's lock
        list(pool.map(transform, range(0, len(x), CHUNK)))
    return Reference(value, np.broadcast_to(sums, x.shape), terms=stages(problem))


def fault(p: Problem) -> tuple[str, str] | None:
    """Lengths that are not among those that the source computes."""
    n = p.shape["n"]
    is_power = n & (n - 1) == 0 and SHORTEST <= n <= LONGEST
    return None if is_power else ("n", f"must be a power of two from {SHORTEST} to {LONGEST}")


KERNEL = Kernel(
    name="fft",
    doc="Each row of y is the Fourier transform of that row of x.",
    dtypes=("float32", "float64"),
    arguments=(
        Tensor("x", "input", shape_of("m", "n", 2)),
        Tensor("roots", "input", shape_of("n", 2)),
        Tensor("y", "output", shape_of("m", "n", 2)),
    ),
    variants=(
        Variant(
            name="stockham",
            source="fft.cu",
            launch=launch,
            parameters=(
                powers_of_two("RADIX", 2, 16, default=8, doc="elements that a thread transforms in registers"),
                powers_of_two("ROWS", 1, 16, default=1, doc="rows of a block"),
                choice("PADDING", 1, 0, doc="unused elements of shared memory after every 32"),
                choice("TABLE", 0, 1, doc="whether the roots of unity are read from memory"),
            ),
            constraints=(
                Constraint(
                    "there are rows for half the block", lambda c, p, _d: c.ROWS == 1 or 2 * p.shape["m"] > c.ROWS
                ),
            ),
        ),
    ),
    fault=fault,
    inputs=inputs,
    flops=lambda p: 5 * p.shape["m"] * p.shape["n"] * stages(p),  # as everybody counts them
    bytes_moved=lambda p: 4 * p.shape["m"] * p.shape["n"] * p.item_bytes,
    reference=reference,
    ranking_l2="cold",
    example_shape={"m": 65536, "n": 1024},
)
