"""The axes of a call's problem, and whether its arrays follow from them, so that any size may be asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MOST_PER_ELEMENT = 4
"""An array has at most so many numbers for an element of the problem: the components of a vector type."""


def axes_of(record: Mapping[str, Any]) -> dict[str, int]:
    """The sizes by axis: those of problem_size that are numbers; else the length of the largest array."""
    sizes = {axis: part["size"] for axis, part in zip("xyz", record["grid"], strict=True)}
    numbers = {axis: size for axis, size in sizes.items() if isinstance(size, int) and size > 1}
    if not numbers:
        return {"n": max((math.prod(one["shape"]) for one in _tensors(record)), default=1)}
    return {"n": next(iter(numbers.values()))} if len(numbers) == 1 and "x" in numbers else numbers


def axis_at(place: int, record: Mapping[str, Any], axes: Mapping[str, int]) -> str | None:
    """The axis whose size is this part of problem_size; None where it is no number, or 1."""
    size = record["grid"][place]["size"]
    if not isinstance(size, int) or size <= 1:
        return None
    return "n" if "n" in axes else "xyz"[place]


def is_for_any_size(record: Mapping[str, Any], axes: Mapping[str, int]) -> bool:
    """Whether the kernel gets its size at run time, and its grid and all of its arrays follow from it.

    Not where the grid is the same for every size, where the script gives an answer, where contents are kept, where a
    size is written in the source, or where a function computes the launch, which may know the size.
    """
    sizes = list(axes.values())
    passed = [one["value"] for one in record["arguments"] if one["kind"] == "scalar"]
    fixed = any(not isinstance(part["size"], int) for part in record["grid"])
    fixed = fixed or all(part["size"] == 1 for part in record["grid"])
    return (
        not fixed
        and len(set(sizes)) == len(sizes)
        and set(sizes) <= set(passed)
        and record["answer"] is None
        and record["verify"] is None
        and not record["definitions"]
        and all(one["contents"]["kind"] not in {"file", "seeded"} for one in _tensors(record))
        and all(shape_in_axes(one["shape"], axes) is not None for one in _tensors(record))
        and not any(re.search(rf"\b{size}\b", one["text"]) for one in record["sources"] for size in sizes)
    )


def shape_in_axes(shape: Sequence[int], axes: Mapping[str, int]) -> list[str] | None:
    """Each size of an array's shape as an expression of the problem `p`; None where one does not follow."""
    found = [_size_in_axes(size, axes) for size in shape]
    return None if None in found else [text for text in found if text is not None]


def _size_in_axes(size: int, axes: Mapping[str, int]) -> str | None:
    forms = {one: f'p.shape["{axis}"]' for axis, one in axes.items()}
    if len(axes) > 1:
        forms.setdefault(math.prod(axes.values()), " * ".join(f'p.shape["{axis}"]' for axis in axes))
    for whole, text in forms.items():
        for count in range(1, MOST_PER_ELEMENT + 1):
            if size == whole * count:
                return text if count == 1 else f"{count} * {text}"
    return str(size) if size <= MOST_PER_ELEMENT else None


def _tensors(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in record["arguments"] if one["kind"] == "tensor"]
