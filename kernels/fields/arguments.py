"""The parameters of a kernel's function: tensors and scalars, of the problem's dtype or one of their own; textures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.kernels.dtypes import ITEM_BYTES, is_integer
from tilewright.kernels.enumeration.configuration import Values
from tilewright.kernels.fields.axes import Layout
from tilewright.kernels.problem import Problem

DTYPES = ("float32", "int8", "int16", "int32", "uint8", "uint16", "uint32")
"""Dtypes that a texel's components may have."""

MEMORIES = {"linear": (1,), "pitched": (2,), "array": (1, 2, 3)}
"""The possible numbers of axes of texels, by kind of memory."""

FILTERS = ("point", "linear")
ADDRESSES = ("wrap", "clamp", "mirror", "border")
"""The words, in the order of CUfilter_mode and CUaddress_mode."""

WEIGHT_STEP = 2.0**-8
"""Linear filtering weighs neighbours by numbers of 9 bits, 8 of them behind the point (CUDA C++ Programming Guide,
"Linear Filtering"); whether they are rounded or cut off is not documented."""

TEXTURE_REFERENCE = re.compile(r"\btexture\s*<[^;{}()]*>\s*\w+\s*;")


@dataclass(frozen=True)
class Texture:
    """How a texture is created for a `cudaTextureObject_t` parameter, which stands in place of a pointer.

    `memory`: "linear" for `tex1Dfetch`, "pitched" for `tex2D`, "array" (a CUDA array) for `tex1D`, `tex2D`, `tex3D`.
    x is the tensor's last axis, or the one before it where texels have 2 or 4 `channels`, such as `float4`.
    `filter`, "point" or "linear", and `address`, "clamp", "border", "wrap" or "mirror", are those of cudaTextureDesc;
    linear memory has neither. Raises ValueError for what CUDA does not have.
    """

    memory: str = "array"
    filter: str = "point"
    address: str = "clamp"
    normalized: bool = False
    channels: int = 1

    def __post_init__(self) -> None:
        """Checks the words and what goes together."""
        choices = {"memory": tuple(MEMORIES), "filter": FILTERS, "address": ADDRESSES, "channels": (1, 2, 4)}
        for name, words in choices.items():
            if getattr(self, name) not in words:
                listed = ", ".join(map(str, words))
                raise ValueError(f"a texture's {name} is one of {listed}, not {getattr(self, name)!r}")
        if self.memory == "linear" and (self.filter, self.address, self.normalized) != ("point", "clamp", False):
            raise ValueError("a texture of linear memory has neither filter nor address mode; it is read by index")
        if self.address in {"wrap", "mirror"} and not self.normalized:
            raise ValueError(f"a texture's address mode {self.address} needs normalized=True")


def shape_of(*sizes: str | int) -> Callable[[Problem], tuple[int, ...]]:
    """The shape of a tensor by names of axes and numbers: `shape_of("n", 2)` is (n, 2)."""
    return lambda problem: tuple(size if isinstance(size, int) else problem.shape[size] for size in sizes)


@dataclass(frozen=True)
class Tensor:
    """A pointer argument: row-major, `shape(problem)` elements, dense without `strides`.

    `dtype`: one of C_TYPES, or a function of the problem that says one; None: the problem's. role `input` is const in
    the source, `output` is written only, `inout` is read and written. An `inout` may depend on the problem's options:
    `read_when` says for which problems it is read.
    `symbol`: the name of an array that the source has in `__constant__` memory; an input that is copied there before a
    launch; the function has no parameter for it.
    `texture`: the function takes a `cudaTextureObject_t` in place of the pointer, which reads an input so.
    `written`: of an output whose size depends on the configuration, such as a sum for each block, how many elements
    one writes; `shape` is what the largest needs. The kernel's check gets these elements alone, as a vector.
    `normalised`: each row is computed by itself, whatever its mean and its size, as by softmax or a norm.
    `triton`: what Triton calls its elements, where they are of a type that NumPy has not: `i1` of bytes that are truth
    values, `fp8e4nv`.
    """

    name: str
    role: str
    shape: Callable[[Problem], tuple[int, ...]]
    read_when: Callable[[Problem], bool] = lambda _problem: True
    summed: Callable[[Problem], int | None] = lambda _problem: None  # which of its axes a factor is summed over
    strides: Callable[[Problem], tuple[int, ...]] | None = None  # elements from an index of each axis to the next
    dtype: str | Callable[[Problem], str] | None = None
    symbol: str = ""
    texture: Texture | None = None
    written: Callable[[Values, Problem], int] | None = None
    normalised: bool = False
    triton: str = ""

    def layout(self, problem: Problem) -> Layout:
        """The layout of the argument's elements in memory."""
        shape = tuple(self.shape(problem))
        return Layout.dense(shape) if self.strides is None else Layout(shape, self.strides(problem))

    def is_read(self, problem: Problem) -> bool:
        """Whether the kernel reads it; where not, it is poisoned before a launch that is verified."""
        return self.role != "output" and self.read_when(problem)

    def dtype_for(self, problem: Problem) -> str:
        """The tensor's own dtype, or else the problem's."""
        return self.dtype(problem) if callable(self.dtype) else self.dtype or problem.dtype

    def texels(self, problem: Problem) -> tuple[int, ...]:
        """Texels of a texture along x, y and z, as many axes as it has."""
        shape = tuple(self.shape(problem))
        return (shape if self.texture is None or self.texture.channels == 1 else shape[:-1])[::-1]

    def size_bytes(self, problem: Problem) -> int:
        """Bytes of memory from its first element to its last."""
        return self.layout(problem).elements * ITEM_BYTES[self.dtype_for(problem)]


@dataclass(frozen=True)
class Scalar:
    """A number passed at run time, and the value that tuning passes unless the problem decides it.

    `dtype`: one of C_TYPES; None: what sums of the problem are made in, `Sum` in the source (`REAL` in float32).
    `other`: a value that verification passes in its place with some kinds of inputs, where the results must follow it.
    """

    name: str
    value: Callable[[Problem], float]
    dtype: str | None = None
    other: Callable[[Problem], float] | None = None

    def dtype_for(self, problem: Problem) -> str:
        """The scalar's own dtype, or else that of the problem's sums."""
        return self.dtype or problem.sum_dtype

    def number(self, problem: Problem) -> float:
        """The value that tuning passes: an `int` for an integer dtype."""
        return self.number_of(self.value(problem), problem)

    def number_of(self, value: float, problem: Problem) -> float:
        """The value as a number of its dtype: an `int` for integers. Raises ValueError, OverflowError and TypeError."""
        dtype = self.dtype_for(problem)
        if not is_integer(dtype):
            return float(value)
        if int(value) != value:
            raise ValueError(f"{value} is not a whole number")
        return int(np.array(int(value), dtype))


Argument = Tensor | Scalar
