"""Related kernels, whose measurements predictions use for a problem that has none of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tilewright.kernels.problem import OptionValue

Shape = Mapping[str, int]


def _same(shape: Shape) -> Shape:
    return shape


class RelatedKernel(NamedTuple):
    """A related kernel with options, whose configurations rank in nearly the same order as for the problem.

    `shape_of` converts a shape of the related kernel into one of the problem's kernel; `variants` maps names of the
    related kernel's variants to their names in the problem's kernel, where they differ; `has_library`: whether the
    library takes as long for both.
    """

    kernel: str
    options: Mapping[str, OptionValue] = {}
    shape_of: Callable[[Shape], Shape] = _same
    variants: Mapping[str, str] = {}
    has_library: bool = True
