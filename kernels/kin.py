"""Whose measurements stand for those that a problem lacks, and what they are called there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tilewright.kernels.problem import OptionValue

Shape = Mapping[str, int]


def _same(shape: Shape) -> Shape:
    return shape


class Kin(NamedTuple):
    """A kernel with options, whose configurations rank nearly as those of the problem that names it.

    `shape_of` makes of one of its shapes one of the naming kernel; `variants` has the names there of variants that are
    called otherwise here; `has_library`: whether the library takes as long for either.
    """

    kernel: str
    options: Mapping[str, OptionValue] = {}
    shape_of: Callable[[Shape], Shape] = _same
    variants: Mapping[str, str] = {}
    has_library: bool = True
