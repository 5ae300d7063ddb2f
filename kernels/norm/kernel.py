"""The declaration of a normalisation of rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Kernel, Scalar, Tensor, shape_of
from tilewright.kernels.norm.reference import norm_inputs, norm_reference
from tilewright.kernels.norm.space import HELD, WALK
from tilewright.kernels.problem import Problem

EPS = 1e-5
"""The epsilon of tuning, and of a launch that names none: PyTorch's default for layer_norm."""


def norm_kernel(name: str, doc: str, folder: Path, *, is_centred: bool, has_residual: bool) -> Kernel:
    """The kernel of that name: `is_centred` takes the mean off and adds b, `has_residual` adds R and stores the sum."""
    row_by_row, of_column = shape_of("m", "n"), shape_of("n")

    def flops(p: Problem) -> int:
        """A square, an addition and two products an element; centred two subtractions and an addition more."""
        return (4 + 3 * is_centred + has_residual) * p.shape["m"] * p.shape["n"]

    def bytes_moved(p: Problem) -> int:
        """Read X, w and b, write Y; with a residual, read R and write S."""
        matrices, vectors = 4 if has_residual else 2, 2 if is_centred else 1
        return (matrices * p.shape["m"] + vectors) * p.shape["n"] * p.item_bytes

    return Kernel(
        name=name,
        doc=doc,
        folder=folder,
        axes=("m", "n"),
        launch_axes=("m",),
        row_axis="m",
        dtypes=("float32", "float64", *HALF),
        arguments=(
            Tensor("X", "input", row_by_row, normalised=True),
            *((Tensor("R", "input", row_by_row),) if has_residual else ()),
            Tensor("w", "input", of_column),
            *((Tensor("b", "input", of_column),) if is_centred else ()),
            Scalar("eps", lambda _p: EPS, dtype="float32", other=lambda _p: 1e-7),
            Tensor("Y", "output", row_by_row),
            *((Tensor("S", "output", row_by_row),) if has_residual else ()),
        ),
        variants=(HELD, WALK),
        flops=flops,
        bytes_moved=bytes_moved,
        reference=norm_reference,
        inputs=partial(norm_inputs, names=("X", "R") if has_residual else ("X",)),
        ranking_l2="warm",  # the layer before has just written X, which lies in the L2 cache where it fits
        default_variant="held",
        example_shape={"m": 4096, "n": 4096},
    )
