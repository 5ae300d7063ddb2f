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

BATCH_INVARIANT = "batch_invariant"
"""An option of families, of no kernel: a row's result does not depend on other rows."""


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
        shape: Mapping[str, int | str | tuple[int, int]],
        dtype: str = "",
        options: Mapping[str, OptionValue] | None = None,
        *,
        batch_invariant: bool = False,
    ) -> Family:
        """The family of a shape with one range in it, such as {"m": (1, 8192), "n": 4096, "k": 4096}.

        The range may be text, `1..8192`, and `batch_invariant` may be among the options. Raises InvalidProblemError
        naming the axis and the fix.
        """
        stated = dict(options or {})
        batch_invariant = stated.pop(BATCH_INVARIANT, batch_invariant) is True
        ranges = {axis: _ends(axis, size) for axis, size in shape.items() if not isinstance(size, int)}
        if len(ranges) != 1:
            reason = f"one axis must be a range, and {len(ranges)} are"
            raise InvalidProblemError("shape", reason, "m=1..8192,n=4096,k=4096")
        ((axis, (low, high)),) = ranges.items()
        if low > high:
            raise InvalidProblemError(f"shape.{axis}", f"{low}..{high} is empty", f"{axis}={high}..{low}")
        sizes = {name: size if isinstance(size, int) else high for name, size in shape.items()}
        largest = kernel.with_size_at_launch(kernel.problem(sizes, dtype, stated), axis)
        return cls(largest, low, high, batch_invariant)

    def of_problem(self, problem: Problem) -> Family:
        """The family with this one's sizes, of a problem whose arrays have other layouts."""
        return replace(self, largest=replace(self, largest=problem).at(self.high))

    def admits(self, kernel: Kernel, configuration: Configuration) -> bool:
        """Whether the configuration adds up sums as the family requires."""
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

    @property
    def dtype(self) -> str:
        """The type of its elements."""
        return self.largest.dtype

    def at(self, size: int) -> Problem:
        """The family's problem of that size, which may be beyond its range."""
        return self.largest.with_size(self.axis, size)

    def exact(self, size: int) -> Problem:
        """The problem of that size, with its whole shape compiled in."""
        return replace(self.at(size), at_launch="")

    @property
    def stated_shape(self) -> dict[str, int | str]:
        """The shape as a user states it, with the range as text."""
        return {**self.largest.stated_shape, self.axis: f"{self.low}..{self.high}"}

    @property
    def shape_text(self) -> str:
        """The shape as commands have it: `m=1..8192,n=4096,k=4096`."""
        return ",".join(f"{axis}={size}" for axis, size in self.stated_shape.items())

    @property
    def options(self) -> dict[str, OptionValue]:
        """Every option with its value; `batch_invariant` among them where it is asked for."""
        return {**dict(self.largest.option_items), **self._demands}

    @property
    def stated(self) -> dict[str, object]:
        """The family as callers state and see it: kernel, shape, dtype and options."""
        return {"kernel": self.kernel, "shape": self.stated_shape, "dtype": self.dtype, "options": self.options}

    @property
    def stated_hash(self) -> str:
        """SHA-256 over `stated`, with the range."""
        return hashlib.sha256(json.dumps(self.stated, sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, object]:
        """The family as a plain dictionary, for JSON."""
        return {**self.stated, "at_launch": self.axis}

    @property
    def _demands(self) -> dict[str, bool]:
        return {BATCH_INVARIANT: True} if self.batch_invariant else {}

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the family without its range: its tables supersede each other, whatever their ranges."""
        shape = self.largest.stated_shape | {self.axis: "*"}
        facts = {**self.largest.as_json(), "shape": shape, **self._demands}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return " ".join([self.kernel, self.shape_text, self.dtype, *self._demands])


def is_open(shape: Mapping[str, object]) -> bool:
    """Whether the shape is a family's: one of its sizes is a range."""
    return not all(isinstance(size, int) for size in shape.values())


def _ends(axis: str, size: str | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, tuple):
        return size
    found = _RANGE.fullmatch(size)
    if found is None:
        raise InvalidProblemError(f"shape.{axis}", f"{size[:40]!r} is not of the form LOW..HIGH", "m=1..8192,n=4096")
    return int(found[1]), int(found[2])
