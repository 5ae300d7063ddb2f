"""A problem (kernel, shape, dtype, options), and the limits of a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

OptionValue = bool | str

ITEM_BYTES = {"float32": 4, "float64": 8}
"""Bytes of one element, by dtype."""

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Half the distance from 1 to the next number, by dtype."""

SMALLEST_NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022}
"""By dtype. Below it numbers lose digits or are flushed to zero: no relative error bound holds there."""


@dataclass(frozen=True)
class Limits:
    """What one device allows, as CUDA reports it. Bytes in bytes; grid and block limits per axis."""

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


@dataclass(frozen=True)
class Problem:
    """The key of every result: a kernel, its axis sizes, a dtype and every option with its value."""

    kernel: str
    axes: tuple[tuple[str, int], ...]
    dtype: str
    option_items: tuple[tuple[str, OptionValue], ...]

    @cached_property
    def shape(self) -> Mapping[str, int]:
        """Axis sizes by lower-case name, in the kernel's order."""
        return dict(self.axes)

    @cached_property
    def options(self) -> Mapping[str, OptionValue]:
        """Every option of the kernel with its value, defaults filled in."""
        return dict(self.option_items)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    def as_json(self) -> dict[str, object]:
        """A plain dictionary; `canonical` is its text."""
        return {
            "kernel": self.kernel,
            "shape": dict(self.axes),
            "dtype": self.dtype,
            "options": dict(self.option_items),
        }

    @cached_property
    def canonical(self) -> str:
        """Compact JSON with sorted keys: equal problems have equal text."""
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical text, hexadecimal."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def __str__(self) -> str:
        shape = ",".join(f"{axis}={size}" for axis, size in self.axes)
        return f"{self.kernel} {shape} {self.dtype}"
