"""A text as a filter of a kernel's problems: `m=4096,k=784`, all sizes as `4096x4096x4096`, or one size, `4096`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, case, cast, func, or_
from sqlalchemy.dialects.postgresql import JSONPATH

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.parse import parse_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.store import models

SIZES = re.compile(r"[0-9]{1,18}(?:\s*[x\N{MULTIPLICATION SIGN}*,]\s*[0-9]{1,18})*", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*[x\N{MULTIPLICATION SIGN}*,]\s*", re.IGNORECASE)


def of_shape(text: str, axes: Sequence[str]) -> ColumnElement[bool]:
    """The condition on a joined problem whose kernel has these axes; raises InvalidRequestError naming `shape`."""
    shape, written = models.Problem.shape, text.strip()
    if not SIZES.fullmatch(written):
        return shape.contains(parse_shape(written))
    sizes = sizes_of(written)
    found = of_sizes(sizes, axes)
    if found is None:
        reason = f"{written[:40]!r} has {len(sizes)} sizes; write one for each of {', '.join(axes)}, or a single one."
        raise InvalidRequestError("shape", reason, "x".join(["4096"] * len(axes)))
    return found


def shape_of(text: str, axes: Sequence[str]) -> dict[str, int]:
    """The shape that a text names: by axes, or by their sizes alone in order; raises InvalidRequestError."""
    written = text.strip()
    sizes = sizes_of(written) if SIZES.fullmatch(written) else []
    return dict(zip(axes, sizes, strict=True)) if len(sizes) == len(axes) else parse_shape(written)


def sizes_of(written: str) -> list[int]:
    """The sizes of a text that matches SIZES."""
    return [int(size) for size in _BETWEEN.split(written)]


def of_sizes(sizes: Sequence[int], axes: Sequence[str]) -> ColumnElement[bool] | None:
    """The condition for sizes without names: of all axes in order, or one of any axis; None for another number."""
    shape = models.Problem.shape
    if len(sizes) == 1:
        return or_(*(shape.contains({axis: sizes[0]}) for axis in axes))
    return shape.contains(dict(zip(axes, sizes, strict=True))) if len(sizes) == len(axes) else None


def as_number(stored: ColumnElement[Any]) -> ColumnElement[int]:
    """A size of a stored shape, `shape[axis].astext`, as a number; the end of a range."""
    return cast(func.split_part(stored, ".", -1), BigInteger)


def is_family() -> ColumnElement[bool]:
    """Whether a joined problem is a family: one of its sizes is a range."""
    ranges = cast('$.* ? (@.type() == "string")', JSONPATH)
    return func.jsonb_path_exists(models.Problem.shape, ranges)


def in_order(kernel: Any, shape: Any, dtype: Any) -> list[ColumnElement[Any]]:
    """The key that sorts problems: the kernel's name, the sizes in the order of its axes, the type."""
    declared = catalogue().kernels()

    def size(place: int) -> ColumnElement[Any]:
        own = ((one.name, one.axes[place]) for one in declared if len(one.axes) > place)
        return case(*((kernel == name, as_number(shape[axis].astext)) for name, axis in own))

    most = max((len(one.axes) for one in declared), default=0)
    return [kernel, *(size(place) for place in range(most)), dtype]
