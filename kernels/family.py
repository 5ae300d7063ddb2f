"""A family: the problems that differ in the size of one axis, which comes with the launch, so that they share code."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.space import Configuration

_RANGE = re.compile(r"([1-9]\d{0,9})\.\.([1-9]\d{0,9})")


@dataclass(frozen=True)
class Family:
    """The problems with `low` to `high` along the axis of `largest` that has its size from the launch.

    `batch_invariant`: one row's result must depend neither on how many others there are nor on what they hold.
    """

    largest: Problem
    low: int
    high: int
    batch_invariant: bool = False

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        shape: Mapping[str, int | tuple[int, int]],
        dtype: str = "",
        options: Mapping[str, OptionValue] | None = None,
        *,
        batch_invariant: bool = False,
    ) -> Family:
        """The family of a shape with one range in it, such as {"m": (1, 8192), "n": 4096, "k": 4096}.

        Raises InvalidProblemError naming the axis and the fix.
        """
        ranges = {axis: size for axis, size in shape.items() if isinstance(size, tuple)}
        if len(ranges) != 1:
            reason = f"one axis must be a range, and {len(ranges)} are"
            raise InvalidProblemError("shape", reason, "m=1..8192,n=4096,k=4096")
        ((axis, (low, high)),) = ranges.items()
        if low > high:
            raise InvalidProblemError(f"shape.{axis}", f"{low}..{high} is empty", f"{axis}={high}..{low}")
        sizes = {name: size if isinstance(size, int) else high for name, size in shape.items()}
        largest = kernel.with_size_at_launch(kernel.problem(sizes, dtype, options), axis)
        return cls(largest, low, high, batch_invariant)

    def of_problem(self, problem: Problem) -> Family:
        """The same sizes of a problem whose arrays lie otherwise."""
        return replace(self, largest=replace(self, largest=problem).at(self.high))

    def admits(self, kernel: Kernel, configuration: Configuration) -> bool:
        """Whether the configuration's sums are as the family asks."""
        variant = kernel.variant(configuration.variant)
        return not self.batch_invariant or variant.is_batch_invariant(configuration.values, self.largest)

    @property
    def axis(self) -> str:
        """The axis whose size comes with the launch."""
        return self.largest.at_launch

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.largest.kernel

    def at(self, size: int) -> Problem:
        """The family's problem of that size, which may be beyond its range."""
        axes = tuple((axis, size if axis == self.axis else extent) for axis, extent in self.largest.axes)
        return replace(self.largest, axes=axes)

    def exact(self, size: int) -> Problem:
        """The same with all of its shape compiled in."""
        return replace(self.at(size), at_launch="")

    @property
    def shape_text(self) -> str:
        """The shape as commands have it: `m=1..8192,n=4096,k=4096`."""
        stated = self.largest.stated_shape | {self.axis: f"{self.low}..{self.high}"}
        return ",".join(f"{axis}={size}" for axis, size in stated.items())

    def as_json(self) -> dict[str, object]:
        """A plain dictionary."""
        shape = self.largest.stated_shape | {self.axis: [self.low, self.high]}
        return {**self.largest.as_json(), "shape": shape, **self._demands}

    @property
    def _demands(self) -> dict[str, bool]:
        return {"batch_invariant": True} if self.batch_invariant else {}

    @cached_property
    def hash(self) -> str:
        """SHA-256 over it without its range: tables of one family supersede each other, whatever their ranges."""
        shape = self.largest.stated_shape | {self.axis: "*"}
        facts = {**self.largest.as_json(), "shape": shape, **self._demands}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return " ".join([self.kernel, self.shape_text, self.largest.dtype, *self._demands])


def read_shape(text: str) -> dict[str, int | tuple[int, int]]:
    """A shape with ranges by axis, from `m=1..8192,n=4096`; raises InvalidProblemError."""
    shape: dict[str, int | tuple[int, int]] = {}
    for part in text.split(","):
        axis, equals, size = part.strip().partition("=")
        found = _RANGE.fullmatch(size)
        if not equals or not (found or re.fullmatch(r"[1-9]\d{0,9}", size)):
            raise InvalidProblemError("shape", f"{part!r} is neither AXIS=SIZE nor AXIS=LOW..HIGH", "m=1..8192,n=4096")
        shape[axis] = (int(found[1]), int(found[2])) if found else int(size)
    return shape
