"""A problem (kernel, shape, dtype, options), and the limits of a device."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilewright.kernels.dtypes import HALF, ITEM_BYTES, sum_dtype
from tilewright.kernels.fields.axes import OptionalAxis

OptionValue = bool | str


@dataclass(frozen=True)
class Limits:
    """Limits of one device, as CUDA reports them. Grid and block limits are per axis."""

    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    max_threads_per_block: int = 1024
    max_shared_bytes: int = 48 * 1024  # per block, opt-in maximum
    shared_bytes_per_multiprocessor: int = 100 * 1024
    registers_per_multiprocessor: int = 65536
    max_threads_per_multiprocessor: int = 2048
    max_blocks_per_multiprocessor: int = 32
    max_registers_per_thread: int = 255
    warp_size: int = 32
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    features: frozenset[str] = frozenset({"ptx"})  # "ptx": inline assembly runs here; the CPU device has it not


class _Options(dict[str, OptionValue]):
    """Options by name, with defaults of such as it does not list."""

    def __init__(self, stated: tuple[tuple[str, OptionValue], ...], unstated: dict[str, OptionValue]) -> None:
        super().__init__(stated)
        self._unstated = unstated

    def __missing__(self, name: str) -> OptionValue:
        return self._unstated[name]


@dataclass(frozen=True)
class Problem:
    """The key of every result: a kernel, its axis sizes, a dtype and every option with its value.

    `chosen_axes` are those of the kernel's `optional_axes` that are not at their default, in the kernel's order.
    `at_launch` names an axis whose size the compiled code gets with each launch: one code for every size of it.
    """

    kernel: str
    axes: tuple[tuple[str, int], ...]
    dtype: str
    option_items: tuple[tuple[str, OptionValue], ...]
    chosen_axes: tuple[tuple[str, int], ...] = ()
    optional_axes: tuple[OptionalAxis, ...] = field(default=(), compare=False, repr=False)
    unstated_options: tuple[tuple[str, OptionValue], ...] = field(default=(), compare=False, repr=False)
    at_launch: str = ""

    @cached_property
    def shape(self) -> Mapping[str, int]:
        """Axis sizes by lower-case name, in the kernel's order, the optional ones filled in."""
        sizes, chosen = dict(self.axes), dict(self.chosen_axes)
        for axis in self.optional_axes:
            size = chosen.get(axis.name)
            sizes[axis.name] = axis.default(sizes, self.options) if size is None else size
        return sizes

    @property
    def stated_shape(self) -> dict[str, int]:
        """The shape as a user states it: without what is at its default."""
        return dict(self.axes + self.chosen_axes)

    @cached_property
    def options(self) -> Mapping[str, OptionValue]:
        """Every stated option with its value. One that is unstated at its default can be asked for too."""
        return _Options(self.option_items, dict(self.unstated_options))

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def is_half(self) -> bool:
        """Whether its elements have 16 bits."""
        return self.dtype in HALF

    @property
    def sum_dtype(self) -> str:
        """The dtype of sums of its elements: float32 for half types."""
        return sum_dtype(self.dtype)

    @property
    def sum_bytes(self) -> int:
        """Bytes of one sum."""
        return ITEM_BYTES[self.sum_dtype]

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The axes that say how much there is to compute: those that all problems of the kernel have, and a batch."""
        counted = {axis.name for axis in self.optional_axes if axis.is_size}
        return self.axes + tuple(chosen for chosen in self.chosen_axes if chosen[0] in counted)

    @property
    def rules(self) -> tuple[tuple[str, int], ...]:
        """The chosen axes that change what is computed, such as a convolution's stride; neither sizes nor places."""
        rules = {axis.name for axis in self.optional_axes if not axis.is_place and not axis.is_size}
        return tuple(item for item in self.chosen_axes if item[0] in rules)

    @property
    def dense(self) -> Problem:
        """The problem with arrays that have no gaps and share no memory; this one where they already are so."""
        places = {axis.name for axis in self.optional_axes if axis.is_place and not axis.is_size}
        chosen = tuple(item for item in self.chosen_axes if item[0] not in places)
        return self if chosen == self.chosen_axes else replace(self, chosen_axes=chosen)

    @property
    def shape_text(self) -> str:
        """The stated shape as commands and addresses have it: `m=4,n=5,k=6,batch=2`."""
        return ",".join(f"{axis}={size}" for axis, size in self.stated_shape.items())

    def with_size(self, axis: str, size: int) -> Problem:
        """The problem with another size of that axis."""
        axes = tuple((name, size if name == axis else extent) for name, extent in self.axes)
        chosen = {name: extent for name, extent in self.chosen_axes if name != axis}
        sizes = dict(axes) | chosen
        for one in self.optional_axes:
            if one.name == axis and size != one.default(sizes, self.options):
                chosen[axis] = size
        ordered = tuple((one.name, chosen[one.name]) for one in self.optional_axes if one.name in chosen)
        return replace(self, axes=axes, chosen_axes=ordered)

    def as_json(self) -> dict[str, object]:
        """A plain dictionary; `canonical` is its text."""
        stated: dict[str, object] = {
            "kernel": self.kernel,
            "shape": self.stated_shape,
            "dtype": self.dtype,
            "options": dict(self.option_items),
        }
        return stated | {"at_launch": self.at_launch} if self.at_launch else stated

    @cached_property
    def canonical(self) -> str:
        """Compact JSON with sorted keys: equal problems have equal text."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical text, hexadecimal."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.kernel} {self.shape_text} {self.dtype}"


def octaves(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The powers of two that the sizes of two shapes differ by, over the axes of the first.

    Summed, so that 1 x n is far from n x 1. A size that the second lacks, and one of 0 such as a padding, counts as 1.
    """
    return sum(abs(math.log2((size or 1) / (other.get(axis) or 1))) for axis, size in one.items())
