"""A kernel's declaration: axes, dtypes, options, arguments, variants, work counts and its reference.

One import for declarations: the names of `fields/`, `variant.py` and `reference.py` are here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tilewright.kernels.dtypes import REAL, real_macros
from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.fields.arguments import Argument, Scalar, Tensor, Texture, shape_of
from tilewright.kernels.fields.axes import Layout, OptionalAxis
from tilewright.kernels.fields.declared import DeclaredKernel, RelatedKernel
from tilewright.kernels.fields.options import Option, check_options
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.reference import (
    Arrays,
    CheckFunction,
    InputsFunction,
    ProductReference,
    Reference,
    ReferenceFunction,
)
from tilewright.kernels.sources import identity
from tilewright.kernels.sources.source import resolved
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.kernels.triton import TYPES, Named, constants_of, is_passed, is_triton, programs, sizes_of
from tilewright.kernels.variant import Launch, Preparation, TensorMap, Variant, ceil_div, covering

MAX_AXIS = 2**31 - 1

SIZE_AT_LAUNCH = "size_of_launch"
"""The parameter of a function that is told the size of an axis with the launch."""

SPACES_KEPT = 64
"""Search spaces that a process keeps once enumerated; of gemm's, one takes about 200 kB."""


@dataclass(frozen=True, kw_only=True)
class Kernel(DeclaredKernel):
    """A declared kernel with its problems, spaces and sources: everything that tuning and serving need."""

    def passed(self, problem: Problem) -> Sequence[Argument]:
        """The arguments that a launch passes, in order, without those that a Triton source has as constants.

        The size of an axis at launch comes behind the declared ones.
        """
        if self.is_triton:
            return [a for a in self.arguments if is_passed(a, problem)]
        return [*self.parameters, *self._sizes_at_launch(problem)]

    def scalars(self, problem: Problem) -> Sequence[Scalar]:
        """The numbers that a launch passes, in order."""
        return [*(a for a in self.arguments if isinstance(a, Scalar)), *self._sizes_at_launch(problem)]

    @staticmethod
    def _sizes_at_launch(problem: Problem) -> Sequence[Scalar]:
        axis = problem.at_launch
        return [Scalar(SIZE_AT_LAUNCH, lambda p: p.shape[axis], "uint32")] if axis else []

    def with_size_at_launch(self, problem: Problem, axis: str) -> Problem:
        """The same problem for code that takes the size of that axis with the launch; raises InvalidProblemError."""
        if axis not in self.launch_axes:
            has = f"those of {self.name} are {', '.join(self.launch_axes)}" if self.launch_axes else "it has none"
            raise self._wrong(axis, f"is no axis of {self.name} whose size may vary at launch; {has}")
        chosen = replace(problem, at_launch=axis)
        if not any(variant.takes_size(chosen) for variant in self.variants):
            raise self._wrong(axis, f"no variant of {self.name} has it vary at launch for such operands ({problem})")
        return chosen

    def variant(self, name: str) -> Variant:
        """The variant of that name; raises UnknownNameError."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise UnknownNameError("variant", name, [v.name for v in self.variants])

    def problem(
        self, shape: Mapping[str, int], dtype: str = "", options: Mapping[str, OptionValue] | None = None
    ) -> Problem:
        """A checked problem with every option filled in; raises InvalidProblemError naming the field and the fix.

        `dtype`: the first of the kernel's unless it says which.
        """
        options, dtype = options or {}, dtype or self.dtypes[0]
        for axis in shape:
            if axis not in self.axis_names:
                raise self._wrong(axis, f"{self.name} has the axes {self._axes_in_words}")
        for axis in self.axes:
            if axis not in shape:
                raise self._wrong(axis, f"the axis {axis} is missing")
            if type(shape[axis]) is not int or not 1 <= shape[axis] <= MAX_AXIS:
                raise self._wrong(axis, f"must be a whole number from 1 to {MAX_AXIS}")
        if dtype not in self.dtypes:
            raise InvalidProblemError("dtype", f"{self.name} computes in {', '.join(self.dtypes)}", self.dtypes[0])
        if options:
            check_options(self.name, self.options, options, dtype, self.dtypes)
        filled = tuple((option.name, options.get(option.name, option.default)) for option in self.options)
        axes = tuple((axis, shape[axis]) for axis in self.axes)
        chosen = self._chosen_axes(shape, dict(filled)) if len(shape) > len(axes) else ()
        stated = tuple(item for item in filled if item not in self._unstated) if self._unstated else filled
        problem = Problem(self.name, axes, dtype, stated, chosen, self.optional_axes, self._unstated)
        fault = self.fault(problem)
        if fault is not None:
            raise self._wrong(*fault)
        return problem

    @cached_property
    def _unstated(self) -> tuple[tuple[str, OptionValue], ...]:
        """The options that a key leaves out, with their defaults."""
        return tuple((option.name, option.default) for option in self.options if option.unstated)

    @property
    def _axes_in_words(self) -> str:
        optional = ", ".join(axis.name for axis in self.optional_axes)
        return ", ".join(self.axes) + (f", and may have {optional}" if optional else "")

    def _chosen_axes(self, shape: Mapping[str, int], options: Mapping[str, OptionValue]) -> tuple[tuple[str, int], ...]:
        """The optional axes that are not at their default; raises InvalidProblemError."""
        sizes, chosen = {axis: shape[axis] for axis in self.axes}, []
        for axis in self.optional_axes:
            default = axis.default(sizes, options)
            size = sizes[axis.name] = shape.get(axis.name, default)
            if size == default and type(size) is int:
                continue
            fault = axis.fault(sizes, options) if type(size) is int else ("must be a whole number", default)
            if fault is not None:
                raise self._wrong(axis.name, fault[0], {axis.name: fault[1]})
            chosen.append((axis.name, size))
        return tuple(chosen)

    def _wrong(self, axis: str, reason: str, remedy: Mapping[str, int] | None = None) -> InvalidProblemError:
        shape = remedy or self.example_shape
        return InvalidProblemError(f"shape.{axis}", reason, ",".join(f"{name}={size}" for name, size in shape.items()))

    def estimated_flops(self, problem: Problem) -> int:
        """The operations that `flops` counts; where it does not count, one for each byte of the arguments."""
        flops = self.flops(problem)
        return self.memory_bytes(problem) if flops is None else flops

    def estimated_bytes(self, problem: Problem) -> int:
        """The bytes that `bytes_moved` counts; where it does not count, those of the arguments."""
        bytes_moved = self.bytes_moved(problem)
        return self.memory_bytes(problem) if bytes_moved is None else bytes_moved

    def memory_bytes(self, problem: Problem) -> int:
        """Device memory that the arguments take, in bytes."""
        return sum(tensor.size_bytes(problem) for tensor in self.tensors)

    def usable_variants(self, problem: Problem, limits: Limits, only: Iterable[str] | None = None) -> list[Variant]:
        """The variants that this device and problem admit; `only` narrows them (unknown names raise)."""
        variants = [self.variant(name) for name in only] if only else list(self.variants)
        return [v for v in variants if v.runs_on(limits) and v.admits(problem, limits)]

    def space(self, problem: Problem, limits: Limits, only: Iterable[str] | None = None) -> SearchSpace:
        """The search space of a problem on a device, over the usable variants; one object for the same question."""
        return _space(tuple(self.usable_variants(problem, limits, only)), problem, limits)

    def default_configuration(self, space: SearchSpace) -> Configuration:
        """The configuration that a gain is measured against: the default variant's feasible default."""
        by_variant = {start.variant: start for start in space.defaults()}
        return next(by_variant[v.name] for v in self.variants_from_default if v.name in by_variant)

    def first_configurations(self, space: SearchSpace) -> list[Configuration]:
        """Configurations that a search tries first: the default, then variants' own starts, the last declared first.

        Fast variants are declared last. Simple ones have a false `Variant.starts_search` and are left out: they compile
        first, and a device would time them while it waits for the fast ones.
        """
        if not len(space):
            return []
        default, own = self.default_configuration(space), reversed(space.defaults())
        return [default, *(start for start in own if start.variant in space.start_variants and start != default)]

    def source(self, variant: str) -> str:
        """The variant's source with the headers that it includes in it, as the compilers get it."""
        name = self.variant(variant).source
        if name not in self._sources:
            if is_triton(name):
                self._sources[name] = (self.folder / name).read_text(encoding="utf-8-sig")
                return self._sources[name]
            text = resolved(self.folder / name, (self.folder.parent, *self.include_folders))
            # Bundles carry the text: whoever compiles it sees what it was compiled with.
            self._sources[name] = "\n".join([text, *(f"// compiled with {flag}" for flag in self.flags)])
        return self._sources[name]

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Texts of the sources read so far, by file: a kernel keeps those that it was loaded with."""
        return {}

    def source_hash(self, variant: str) -> str:
        """The identity of a variant's source: `identity.code_hash` of it and of the flags."""
        if variant not in self.source_hashes:
            self.variant(variant)  # says which there are
        return self.source_hashes[variant]

    @cached_property
    def source_hashes(self) -> Mapping[str, str]:
        """`source_hash` of every variant, by name; kept: sources are long, and every answer of the service needs it."""
        of_file = {
            v.source: identity.code_hash(self.source(v.name), self.flags, is_triton=is_triton(v.source))
            for v in {v.source: v for v in self.variants}.values()
        }
        return {v.name: of_file[v.source] for v in self.variants}

    def current_hash(self, variant: str, stated: str) -> str:
        """Today's hash where `stated` is this or an earlier version's hash of today's source; else `stated` itself."""
        now, former = self.source_hash(variant), identity.former(stated)
        if former is not None:
            return former.now if former.is_same else stated
        return now if stated == identity.text_hash(self.source(variant)) else stated

    def has_source(self, variant: str, stated: str) -> bool:
        """Whether `stated` is the hash of the variant's source as it is today."""
        return self.current_hash(variant, stated) == self.source_hash(variant)

    def was_corrected(self, variant: str, stated: str) -> bool:
        """Whether `stated` is the hash of a faulty source of the variant, which has been corrected since.

        Its machine code is never loaded. Its configurations and times are predictions.
        """
        former = identity.former(stated)
        return former is not None and not former.is_same and former.now == self.source_hash(variant)

    def definitions(self, problem: Problem, configuration: Configuration, entry: str = "") -> dict[str, str]:
        """The macros that make the source this problem's and this configuration's, by name.

        REAL and REAL_BYTES, for half types REAL_IS_<DTYPE>; SHAPE_<AXIS> of the stated shape; one per option (flags as
        0/1, words as OPTION_WORD = 1); parameters. For a Triton source these are its constexprs: one named as an axis
        has its size, and REAL is a type such as fp32. Of an axis at launch SHAPE_<AXIS> is `size_at_launch()`, for the
        function `entry`, which is the kernel's own unless it says so (common/at_launch.cuh); 2 if the grid has it.
        """
        macros = real_macros(problem.dtype)
        if self.is_triton:
            macros["REAL"] = TYPES[problem.dtype]
        macros |= {f"SHAPE_{axis.upper()}": str(size) for axis, size in problem.stated_shape.items()}
        if problem.at_launch:
            axis = problem.at_launch.upper()
            size = "2" if problem.at_launch in self.grid_axes else "size_at_launch()"
            macros |= {f"SHAPE_{axis}": size, f"{axis}_AT_LAUNCH": "1"}
            macros["AT_LAUNCH"] = f"{entry or self.entry}_param_{len(self.parameters)}"  # its name in PTX
        for name, value in problem.option_items:
            if isinstance(value, bool):
                macros[name.upper()] = str(int(value))
            elif self.is_triton:  # a constexpr needs a value for the words, too, that were not chosen
                macros |= {_word_macro(name, word): str(int(word == value)) for word in self._words_of(name)}
            else:
                macros[_word_macro(name, value)] = "1"
        macros |= {name: str(value) for name, value in configuration.items}
        if self.is_triton:
            macros |= constants_of(self.variant(configuration.variant).constexprs(configuration.values, problem))
            macros |= sizes_of(self.source(configuration.variant), self.entry, problem.stated_shape, macros)
        return macros

    def _words_of(self, option: str) -> list[str]:
        return [str(word) for one in self.options if one.name == option for word in one.values]


@lru_cache(maxsize=SPACES_KEPT)
def _space(variants: tuple[Variant, ...], problem: Problem, limits: Limits) -> SearchSpace:
    spaces = (v.space_at_launch() if problem.at_launch else v.space() for v in variants)
    return SearchSpace(tuple(spaces), problem, limits)


def _word_macro(option: str, word: str) -> str:
    return f"{option.upper()}_{word.upper().replace('-', '_')}"


def unqualified(entry: str) -> str:
    """The bare name of an entry: of `space::transpose<float, 8>`, `transpose`."""
    return entry.partition("<")[0].rpartition("::")[2].strip()


__all__ = [
    "MAX_AXIS",
    "REAL",
    "Argument",
    "Arrays",
    "CheckFunction",
    "InputsFunction",
    "Kernel",
    "Launch",
    "Layout",
    "Named",
    "Option",
    "OptionalAxis",
    "Preparation",
    "ProductReference",
    "Reference",
    "ReferenceFunction",
    "RelatedKernel",
    "Scalar",
    "Tensor",
    "TensorMap",
    "Texture",
    "Variant",
    "ceil_div",
    "covering",
    "programs",
    "shape_of",
    "unqualified",
]
