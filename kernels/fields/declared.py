"""The fields of a kernel's declaration, and what follows from them before there is a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from tilewright.kernels.fields.arguments import Argument, Scalar, Tensor
from tilewright.kernels.fields.axes import Layout, OptionalAxis
from tilewright.kernels.fields.options import Option
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.reference import (
    TOLERANCE,
    Arrays,
    CheckFunction,
    InputsFunction,
    ProductReference,
    ReferenceFunction,
)
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import is_triton
from tilewright.kernels.variant import Variant

PosedBy = Callable[[Problem, Mapping[str, Layout]], tuple[Mapping[str, int], Mapping[str, OptionValue]]]
"""Shape and options of the problem that arrays of these layouts pose; raises InvalidLayoutError."""


@dataclass(frozen=True, kw_only=True)
class DeclaredKernel:
    """A named computation with several variants, as its declaration states it.

    `folder` holds the sources. `entry` is the name of the CUDA function, the same in every variant, or that of a
    template with its arguments, of macros too: `transpose<REAL, TILE>`. Its parameters are `arguments`, in order, but
    for those that are in constant memory.
    `flags` are given to the compiler, and those that begin with -D and -I to the CPU device's too, as are
    `include_folders`. `ranking_l2` says which time ranks, "cold" or "warm"; `ranks_cold` has the problems that rank
    cold all the same, in words.
    `flops` and `bytes_moved` (compulsory: each input read once, each output written once) are of one launch; without
    them there is a time, but neither a rate nor a share of the roof.
    """

    name: str
    doc: str = ""
    folder: Path = Path()  # where the declaration lies, unless it says so
    axes: tuple[str, ...] = ()  # those of example_shape, unless it says so
    dtypes: tuple[str, ...] = ("float32",)
    options: tuple[Option, ...] = ()
    arguments: tuple[Argument, ...]
    variants: tuple[Variant, ...]
    flops: Callable[[Problem], int | None] = lambda _problem: None
    bytes_moved: Callable[[Problem], int | None] = lambda _problem: None
    reference: ReferenceFunction | None = None  # None: what the default configuration computes is right
    arithmetic: str = (
        ""  # without a reference: the coarsest type that it computes in, where its outputs have a finer one
    )
    inputs: InputsFunction | None = None
    check: CheckFunction | None = None  # None: outputs are compared with the reference, within its bounds
    ranking_l2: str = "warm"
    ranks_cold: Mapping[str, Callable[[Problem], bool]] = field(default_factory=dict)
    default_variant: str = ""
    example_shape: Mapping[str, int] = field(default_factory=dict)
    product: ProductReference | None = None  # where it is a matrix product: the tuner's library knows which
    optional_axes: tuple[OptionalAxis, ...] = ()
    # Names an axis whose size does not go with the others, and says why; None where all sizes go together.
    fault: Callable[[Problem], tuple[str, str] | None] = lambda _problem: None
    posed_by: PosedBy | None = None  # None: arrays must be dense, or transposed where an option says so
    entry: str = ""  # the name, unless it says so
    flags: tuple[str, ...] = ()
    include_folders: tuple[Path, ...] = ()
    launch_axes: tuple[str, ...] = ()  # those whose size may come with the launch, in variants that take it
    largest_at_launch: Mapping[str, int] = field(default_factory=dict)  # that launchers are made for, in place of 8,192
    grid_axes: tuple[str, ...] = ()  # of them, those that sources leave to the grid: they know only that it is above 1
    row_axis: str = ""  # a result's rows: each depends on the same row of the arrays with that axis, and on all others
    packed: str = ""  # the input that the option `packed_b` says stays the same
    # Related kernels, whose configurations rank in nearly the same order as for the problem; the most similar first.
    akin: Callable[[Problem], Sequence[RelatedKernel]] = lambda _problem: ()
    # The simplest problem that is divided into the same tiles: predictions compare it in place of the problem.
    plain: Callable[[Problem], Problem] = lambda problem: problem

    def __post_init__(self) -> None:
        """Fills in what follows from the rest; folders may be text."""
        object.__setattr__(self, "include_folders", tuple(map(Path, self.include_folders)))
        object.__setattr__(self, "entry", self.entry or self.name)
        object.__setattr__(self, "axes", self.axes or tuple(self.example_shape))
        if self.arithmetic and self.arithmetic not in TOLERANCE:
            raise ValueError(f"{self.name}: arithmetic must be one of {', '.join(TOLERANCE)}")
        for tensor in self.tensors:
            if tensor.written is not None and (self.check is None or tensor.role != "output"):
                reason = "is for outputs of a kernel with a check: no reference is right for every configuration"
                raise ValueError(f"{self.name}: {tensor.name}: written {reason}")

    @property
    def is_triton(self) -> bool:
        """Whether its sources are Triton's; those of one kernel are all of one language."""
        return is_triton(self.variants[0].source)

    @property
    def output(self) -> Tensor:
        """The tensor that the kernel writes, the first of several."""
        return self.outputs[0]

    @property
    def outputs(self) -> Sequence[Tensor]:
        """Every tensor that the kernel writes."""
        return [a for a in self.tensors if a.role != "input"]

    def l2_of(self, problem: Problem) -> Literal["cold", "warm"]:
        """The state of the L2 cache in which the problem's configurations are ranked."""
        is_cold = self.ranking_l2 == "cold" or any(holds(problem) for holds in self.ranks_cold.values())
        return "cold" if is_cold else "warm"

    def written_by(self, configuration: Configuration, problem: Problem, outputs: Arrays) -> Arrays:
        """The outputs by name, each as far as that configuration writes it."""
        written = {t.name: t.written(configuration.values, problem) for t in self.outputs if t.written is not None}
        return dict(outputs) | {name: outputs[name].reshape(-1)[:count] for name, count in written.items()}

    @property
    def is_held_against_default(self) -> bool:
        """Whether the default configuration decides what is right; of written parts by the check."""
        has_parts = any(tensor.written is not None for tensor in self.outputs)
        return self.reference is None and (self.check is None or has_parts)

    @property
    def verified(self) -> str | None:
        """How results are verified where that is not against a reference, in words; None where it is."""
        if self.check is not None:
            return "by the kernel's own check"
        return "against the kernel's default configuration, not a reference" if self.reference is None else None

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The pointer arguments, in order."""
        return [a for a in self.arguments if isinstance(a, Tensor)]

    @property
    def parameters(self) -> Sequence[Argument]:
        """The arguments that the function takes, in order."""
        return [a for a in self.arguments if isinstance(a, Scalar) or not a.symbol]

    @property
    def constants(self) -> Sequence[Tensor]:
        """The inputs that are copied to constant memory before a launch."""
        return [tensor for tensor in self.tensors if tensor.symbol]

    @property
    def textures(self) -> Sequence[Tensor]:
        """The inputs that the function reads as textures."""
        return [tensor for tensor in self.tensors if tensor.texture is not None]

    def filtered_axes(self, problem: Problem) -> int:
        """Axes of textures along which neighbours are weighted, of all together."""
        filtered = (t for t in self.textures if t.texture is not None and t.texture.filter == "linear")
        return sum(len(tensor.texels(problem)) for tensor in filtered)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """All axes in order, those that a shape may leave out last."""
        return (*self.axes, *(axis.name for axis in self.optional_axes))

    def ordered(self, shape: Mapping[str, int]) -> dict[str, int]:
        """The part of a shape that the kernel has axes for, in their order."""
        return {axis: shape[axis] for axis in self.axis_names if axis in shape}

    @cached_property
    def variants_from_default(self) -> Sequence[Variant]:
        """Variants as an untuned problem tries them: the default, those declared after it, then backwards before it."""
        place = next((i for i, variant in enumerate(self.variants) if variant.name == self.default_variant), 0)
        return [*self.variants[place:], *reversed(self.variants[:place])]

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """The kernel's own flags, and -I for each of its include folders."""
        return (*self.flags, *(f"-I{folder}" for folder in self.include_folders))

    @cached_property
    def declaration(self) -> dict[str, object]:
        """The declaration as plain JSON, for the database and the API."""
        stated: dict[str, object] = {
            "name": self.name,
            "doc": self.doc,
            "axes": list(self.axes),
            "optional_axes": [{"name": axis.name, "doc": axis.doc} for axis in self.optional_axes],
            "dtypes": list(self.dtypes),
            "options": [
                {"name": o.name, "values": list(o.values), "default": o.default, "doc": o.doc} for o in self.options
            ],
            "ranking_l2": self.ranking_l2,
            "example_shape": dict(self.example_shape),
            "variants": [variant.as_json() for variant in self.variants],
        }
        optional = {"ranks_cold": list(self.ranks_cold), "verified": self.verified}
        return stated | {name: value for name, value in optional.items() if value}


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
