"""Families of shapes, decided in the database: the network that a product comes from, or the look of its axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Text, and_, case, cast, func, literal, or_
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from tilewright.service.operations.shape_filter import as_number
from tilewright.service.store import models

FAMILIES = ("batches and views", "Llama-3-8B", "ResNet-50", "square", "odd sizes", "few rows", "other")
"""In order of precedence: the first that fits is a shape's family."""

FEW_ROWS = 64
ODD = 4
"""Rows of so many float32 values are aligned to 16 bytes, what one instruction reads; other sizes have edges."""

# Outputs and inputs of the weight matrices: hidden 4096, 8 key-value heads of 128, feed-forward 14336 (Llama-3-8B);
# the 3x3 convolutions of conv2_x and conv5_x as products of im2col (ResNet-50).
LLAMA = ((6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336))
RESNET = ((64, 576), (512, 4608))


def family(axes: Sequence[str]) -> ColumnElement[str]:
    """The family of a joined problem whose kernel has these axes."""
    sizes = {axis: as_number(models.Problem.shape[axis].astext) for axis in axes}
    shapes = list(sizes.values())
    is_square = and_(*(size == shapes[0] for size in shapes[1:])) if len(shapes) > 1 else literal(value=False)
    is_odd = or_(*(func.mod(size, ODD) != 0 for size in shapes))
    whens = [(is_square, "square"), (is_odd & (shapes[0] > 1), "odd sizes"), (shapes[0] <= FEW_ROWS, "few rows")]
    if set(axes) == {"m", "n", "k"}:
        whens = [
            (~is_square & _layers(sizes, LLAMA), "Llama-3-8B"),
            (_layers(sizes, RESNET), "ResNet-50"),
            *whens,
        ]
    has_more = models.Problem.shape.op("-", return_type=JSONB())(cast(list(axes), ARRAY(Text))) != {}
    return case((has_more, "batches and views"), *whens, else_="other")


def _layers(sizes: Mapping[str, ColumnElement[int]], layers: Sequence[tuple[int, int]]) -> ColumnElement[bool]:
    return or_(*(and_(sizes["n"] == outputs, sizes["k"] == inputs) for outputs, inputs in layers))
