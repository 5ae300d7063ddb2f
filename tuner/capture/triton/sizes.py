"""The axes of captured launches, and every other size of theirs as an expression of these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.kernels.triton import next_power_of_2

Column = tuple[int, ...]
"""One size in every launch."""

MOST_TIMES = 4
"""The largest multiple of an axis that a size counts as, if there is one launch; with several, any multiple."""

FEW = 4
"""A size up to this is a number where it never varies: the components of an element, say."""

FEWEST_PARTS = 8
"""A size is that of another's parts where there are so many in every launch: fewer may be by chance."""


@dataclass
class Sizes:
    """Axes with their sizes in each launch; `forms`: columns that follow from them, as expressions of a problem `p`."""

    launches: int
    axes: dict[str, Column] = field(default_factory=dict)
    _forms: dict[Column, str] = field(default_factory=dict)

    def add(self, name: str, column: Column) -> str:
        """Makes the numbers an axis; the result is its name, in small letters."""
        bare = axis = name.lower()
        number = 2
        while axis in self.axes:
            axis, number = f"{bare}_{number}", number + 1
        self.axes[axis] = column
        self._forms.clear()
        return axis

    def expression(self, column: Column) -> str | None:
        """The size as an expression of the axes; a number where it is always the same; else None."""
        if not self._forms:
            self._forms = self._made()
        found = self._forms.get(column)
        if found is not None and column[0] > 1:
            return found
        if len(set(column)) == 1:
            return str(column[0])
        return found

    def follows(self, column: Column) -> bool:
        """Whether the size is an axis, or a product of axes, and no mere number."""
        self.expression(column)
        return column in self._forms

    def _made(self) -> dict[Column, str]:
        plain = {column: f'p.shape["{axis}"]' for axis, column in reversed(self.axes.items())}
        forms: dict[Column, str] = {}
        products: list[tuple[Column, str]] = []
        for count in (1, 2, 3):
            for chosen in itertools.combinations(plain.items(), count):
                column = tuple(math.prod(row) for row in zip(*(one for one, _ in chosen), strict=True))
                products.append((column, " * ".join(text for _, text in chosen)))
        for column, text in products:
            forms.setdefault(column, text)
        varied = any(len(set(column)) > 1 for column in self.axes.values())
        for column, text in products:
            for times in (*range(2, (16 if varied else MOST_TIMES) + 1), *((32, 64, 128, 256) if varied else ())):
                forms.setdefault(tuple(times * one for one in column), f"{times} * {text}")
        for column, text in plain.items():
            for part in (2, 4, 8, 16, 32, 64, 128) if varied else ():
                divided = tuple(-(-one // part) for one in column)
                if min(divided) >= FEWEST_PARTS:
                    forms.setdefault(divided, f"-(-{text} // {part})")
        return forms

    def power_expression(self, column: Column, *, is_padded: bool) -> str | None:
        """An axis, or the power of two that is not less than an axis; for a padded size the latter first."""
        forms = {column: f'p.shape["{axis}"]' for axis, column in reversed(self.axes.items())}
        powers = {tuple(map(next_power_of_2, sizes)): f"next_power_of_2({text})" for sizes, text in forms.items()}
        return ((forms | powers) if is_padded else (powers | forms)).get(column)


def is_padded(name: str) -> bool:
    """Whether a constexpr's name says that it is a size rounded up."""
    return "pad" in name.lower() or "pow2" in name.lower()


def is_stride(name: str) -> bool:
    """Whether a number's name says that it is no size."""
    return "stride" in name.lower()


def axes_of(numbers: Mapping[str, Column], shapes: Mapping[str, Sequence[Column]], launches: int) -> Sizes:
    """The axes. `numbers`: whole numbers that launches are given; `shapes`: the sizes of each array, axis by axis.

    A number is an axis where an array has it as a size, or where it does not follow from others and an array has it as
    its number of elements, or it varies; then each size of an array that does not follow, unless it is small.
    """
    sizes = Sizes(launches)
    sides = {side for columns in shapes.values() for side in columns}
    elements = {tuple(map(math.prod, zip(*columns, strict=True))) for columns in shapes.values() if columns}
    named = {name: column for name, column in numbers.items() if min(column) >= 1 and not is_stride(name)}
    for name, column in named.items():
        if max(column) > 1 and column in sides:
            sizes.add(name, column)
    for name, column in named.items():
        if max(column) > 1 and column in elements - sides and not sizes.follows(column):
            sizes.add(name, column)
    _add_varying(sizes, named)
    for name, columns in shapes.items():
        for place, column in enumerate(columns):
            if (max(column) > FEW or len(set(column)) > 1) and min(column) >= 1 and not sizes.follows(column):
                sizes.add(f"{name}_{place}" if len(columns) > 1 else f"{name}_size", column)
    _add_varying(sizes, numbers)
    if not sizes.axes:
        sizes.add(f"{next(iter(shapes))}_size", (1,) * launches)
    return sizes


def _add_varying(sizes: Sizes, numbers: Mapping[str, Column]) -> None:
    """Adds the numbers that vary and do not follow from others."""
    for name, column in numbers.items():
        if len(set(column)) > 1 and min(column) >= 1 and sizes.expression(column) is None:
            sizes.add(name, column)
