"""What a kernel declares: axes, dtypes, options, arguments, variants, work counts and its reference.

One import for declarations: the names of `variant.py` and `reference.py` are here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.problem import ITEM_BYTES, Limits, OptionValue, Problem
from tilewright.kernels.reference import Arrays, ProductReference, Reference
from tilewright.kernels.source import resolved
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.kernels.variant import Launch, Preparation, Variant

REAL = {"float32": "float", "float64": "double"}
"""The C type that `REAL` stands for in a source, by dtype."""

MAX_AXIS = 2**31 - 1

SPACES_KEPT = 64
"""Search spaces that a process keeps once enumerated; of gemm's, one takes about 200 kB."""


@dataclass(frozen=True)
class Option:
    """A choice that changes the function computed: a flag (`values` False, True) or one word of several."""

    name: str
    values: tuple[OptionValue, ...]
    default: OptionValue
    doc: str = ""
    only_dtypes: tuple[str, ...] = ()  # those that admit other values than the default; empty: all


@dataclass(frozen=True)
class Tensor:
    """A pointer argument: row-major, `shape(problem)` elements of the problem's dtype.

    role `input` is const in the source, `output` is written only, `inout` is read and written.
    An `inout` may depend on the problem's options: `read_when` says for which problems it is read.
    """

    name: str
    role: str
    shape: Callable[[Problem], tuple[int, ...]]
    read_when: Callable[[Problem], bool] = lambda _problem: True
    summed: Callable[[Problem], int | None] = lambda _problem: None  # which of its axes a factor is summed over

    def is_read(self, problem: Problem) -> bool:
        """Whether the kernel reads it; where not, it is poisoned before a launch that is verified."""
        return self.role != "output" and self.read_when(problem)


@dataclass(frozen=True)
class Scalar:
    """A scalar argument of type REAL, and the value that tuning passes unless the problem decides it."""

    name: str
    value: Callable[[Problem], float]


Argument = Tensor | Scalar


ReferenceFunction = Callable[[Problem, Arrays, Mapping[str, float]], Reference]


@dataclass(frozen=True)
class Kernel:
    """A named computation with several variants; everything that tuning and serving need to know of it.

    `folder` holds the sources. `entry` is the name of the `extern "C"` function, the same in every variant;
    its parameters are `arguments`, in order. `ranking_l2` says which time ranks: "cold" or "warm".
    `flops` and `bytes_moved` (compulsory: each input read once, each output written once) are of one launch.
    """

    name: str
    doc: str
    folder: Path
    axes: tuple[str, ...]
    dtypes: tuple[str, ...]
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]
    variants: tuple[Variant, ...]
    flops: Callable[[Problem], int]
    bytes_moved: Callable[[Problem], int]
    reference: ReferenceFunction
    ranking_l2: str = "warm"
    default_variant: str = ""
    example_shape: Mapping[str, int] = field(default_factory=dict)
    product: ProductReference | None = None  # where it is a matrix product: the tuner's library knows which

    @property
    def entry(self) -> str:
        """The name of the CUDA function."""
        return self.name

    @property
    def output(self) -> Tensor:
        """The tensor that the kernel writes."""
        return next(a for a in self.tensors if a.role != "input")

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The pointer arguments, in order."""
        return [a for a in self.arguments if isinstance(a, Tensor)]

    def variant(self, name: str) -> Variant:
        """The variant of that name; raises UnknownNameError."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise UnknownNameError("variant", name, [v.name for v in self.variants])

    def problem(
        self, shape: Mapping[str, int], dtype: str = "float32", options: Mapping[str, OptionValue] | None = None
    ) -> Problem:
        """A checked problem with every option filled in; raises InvalidProblemError naming the field and the fix."""
        options = options or {}
        for axis in shape:
            if axis not in self.axes:
                raise self._wrong(axis, f"{self.name} has the axes {', '.join(self.axes)}")
        for axis in self.axes:
            size = shape.get(axis)
            if size is None:
                raise self._wrong(axis, f"the axis {axis} is missing")
            if type(size) is not int or not 1 <= size <= MAX_AXIS:
                raise self._wrong(axis, f"must be a whole number from 1 to {MAX_AXIS}")
        if dtype not in self.dtypes:
            raise InvalidProblemError("dtype", f"{self.name} computes in {', '.join(self.dtypes)}", self.dtypes[0])
        if options:
            self._check_options(dtype, options)
        filled = tuple((option.name, options.get(option.name, option.default)) for option in self.options)
        return Problem(self.name, tuple((axis, shape[axis]) for axis in self.axes), dtype, filled)

    def _wrong(self, axis: str, reason: str) -> InvalidProblemError:
        example = ",".join(f"{name}={size}" for name, size in self.example_shape.items())
        return InvalidProblemError(f"shape.{axis}", reason, example)

    def _check_options(self, dtype: str, options: Mapping[str, OptionValue]) -> None:
        known = {option.name: option for option in self.options}
        for name, value in options.items():
            if name not in known:
                raise InvalidProblemError(
                    f"options.{name}", f"{self.name} has the options {', '.join(known) or '(none)'}", "{}"
                )
            allowed = known[name].values
            if not any(type(value) is type(v) and value == v for v in allowed):
                words = ", ".join(str(v).lower() if isinstance(v, bool) else v for v in allowed)
                raise InvalidProblemError(f"options.{name}", f"must be one of {words}", words.split(", ")[-1])
            if value != known[name].default and dtype not in (known[name].only_dtypes or self.dtypes):
                dtypes = ", ".join(known[name].only_dtypes)
                raise InvalidProblemError(f"options.{name}", f"{value} is for {dtypes}", str(known[name].default))

    def memory_bytes(self, problem: Problem) -> int:
        """Device memory that the arguments take, in bytes."""
        sizes = (int(np.prod([int(n) for n in t.shape(problem)], dtype=object)) for t in self.tensors)
        return sum(sizes) * ITEM_BYTES[problem.dtype]

    def usable_variants(self, problem: Problem, limits: Limits, only: Iterable[str] | None = None) -> list[Variant]:
        """The variants that this device and problem admit; `only` narrows them (unknown names raise)."""
        variants = [self.variant(name) for name in only] if only else list(self.variants)
        return [v for v in variants if v.runs_on(limits) and v.admits(problem, limits)]

    def space(self, problem: Problem, limits: Limits, only: Iterable[str] | None = None) -> SearchSpace:
        """The search space of a problem on a device, over the usable variants; one object for the same question."""
        return _space(tuple(self.usable_variants(problem, limits, only)), problem, limits)

    def default_configuration(self, space: SearchSpace) -> Configuration:
        """The configuration that a gain is measured against: the default variant's feasible default."""
        starts = space.defaults()
        return next((c for c in starts if c.variant == self.default_variant), starts[0])

    def source(self, variant: str) -> str:
        """The variant's source with the headers that it includes in it, as the compilers get it."""
        name = self.variant(variant).source
        if name not in self._sources:
            self._sources[name] = resolved(self.folder / name, (self.folder.parent,))
        return self._sources[name]

    @cached_property
    def _sources(self) -> dict[str, str]:
        """What has been read, by file: a kernel keeps the sources that it was loaded with."""
        return {}

    def source_hash(self, variant: str) -> str:
        """SHA-256 of `source(variant)`, hexadecimal."""
        if variant not in self.source_hashes:
            self.variant(variant)  # says which there are
        return self.source_hashes[variant]

    @cached_property
    def source_hashes(self) -> Mapping[str, str]:
        """The same of every variant, by name: sources are long, and every answer of the service needs them."""
        return {v.name: hashlib.sha256(self.source(v.name).encode()).hexdigest() for v in self.variants}

    def definitions(self, problem: Problem, configuration: Configuration) -> dict[str, str]:
        """The macros that make the source this problem's and this configuration's, by name.

        REAL and REAL_BYTES; SHAPE_<AXIS>; one per option (flags as 0/1, words as OPTION_WORD = 1); parameters.
        """
        macros = {"REAL": REAL[problem.dtype], "REAL_BYTES": str(ITEM_BYTES[problem.dtype])}
        macros |= {f"SHAPE_{axis.upper()}": str(size) for axis, size in problem.axes}
        for name, value in problem.option_items:
            if isinstance(value, bool):
                macros[name.upper()] = str(int(value))
            else:
                macros[f"{name.upper()}_{value.upper().replace('-', '_')}"] = "1"
        macros |= {name: str(value) for name, value in configuration.items}
        return macros

    @cached_property
    def declaration(self) -> dict[str, object]:
        """The declaration as plain JSON, for the database and the API."""
        return {
            "name": self.name,
            "doc": self.doc,
            "axes": list(self.axes),
            "dtypes": list(self.dtypes),
            "options": [
                {"name": o.name, "values": list(o.values), "default": o.default, "doc": o.doc} for o in self.options
            ],
            "ranking_l2": self.ranking_l2,
            "example_shape": dict(self.example_shape),
            "variants": [
                {
                    "name": v.name,
                    "doc": v.doc,
                    "source": v.source,
                    "min_compute_capability": _dotted(v.min_compute_capability),
                    "max_compute_capability": v.max_compute_capability and _dotted(v.max_compute_capability),
                    "requires": sorted(v.requires),
                    "parameters": [
                        {"name": p.name, "values": list(p.values), "default": p.default, "doc": p.doc}
                        for p in v.parameters
                    ],
                    "constraints": [c.name for c in v.space().constraints],
                }
                for v in self.variants
            ],
        }


@lru_cache(maxsize=SPACES_KEPT)
def _space(variants: tuple[Variant, ...], problem: Problem, limits: Limits) -> SearchSpace:
    return SearchSpace(tuple(v.space() for v in variants), problem, limits)


def _dotted(compute_capability: tuple[int, int]) -> str:
    return "{}.{}".format(*compute_capability)


__all__ = [
    "MAX_AXIS",
    "REAL",
    "Argument",
    "Arrays",
    "Kernel",
    "Launch",
    "Option",
    "Preparation",
    "ProductReference",
    "Reference",
    "ReferenceFunction",
    "Scalar",
    "Tensor",
    "Variant",
]
