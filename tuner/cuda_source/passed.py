"""A kernel's parameters as arguments of a first declaration: tensors with roles, and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tilewright.kernels.dtypes import ITEM_BYTES, REAL
from tilewright.tuner.cuda_source.c_types import NUMBER, aliases_in, dtype_of, macros_in, type_of, without_aliases
from tilewright.tuner.cuda_source.tree import KernelFunction, fields_of_struct
from tilewright.tuner.cuda_source.uses import ASSIGNED, READ, PointerUses

_VECTOR = re.compile(r"(float|double|char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong)([1234])")
_NAME = re.compile(r"[A-Za-z_]\w*")


class UnclearSourceError(Exception):
    """No declaration can be made from this source."""


class Geometry(Protocol):
    """The axes of a declaration, and those of each of its arrays."""

    @property
    def axes(self) -> list[str]:
        """Names of the axes."""

    def shape_of(self, array: str) -> list[str]:
        """The axes of an array."""


@dataclass(frozen=True)
class FirstArgument:
    """A parameter of the function. `dtype` None is REAL; `components` of a vector type; no `role`: a number."""

    name: str
    role: str
    dtype: str | None
    components: int = 1

    @classmethod
    def of(
        cls, part: str, kernel: KernelFunction, text: str, types: Mapping[str, str], uses: PointerUses
    ) -> FirstArgument:
        """The argument for a parameter as it is written; `text` is what the kernel needs of its file, `types` has the
        types that stand for its template's, `uses` are those in its file.

        Raises UnclearSourceError for what cannot be passed: it names the line and what to do.
        """
        written = part
        part = re.sub(r"\b\w+\b", lambda word: types.get(word[0], word[0]), part)
        part = without_aliases(part, macros_in(text) | dict(aliases_in(text)))
        kind, is_pointer = type_of(part)
        _refuse(written, part, kind, kernel, is_pointer=is_pointer)
        name = _NAME.findall(part.partition("[")[0])[-1]
        role = _role(part, name, kernel, uses) if is_pointer else ""
        vector = _VECTOR.fullmatch(kind)
        scalar = _scalar_of(vector[1]) if vector else kind
        if scalar == "REAL" or NUMBER.fullmatch(scalar):
            return cls(name, role, None if scalar == "REAL" else dtype_of(scalar), int(vector[2]) if vector else 1)
        if is_pointer and (fields := fields_of_struct(text, kind)) is not None:
            dtype, components = _of_fields(fields, kind, kernel)
            return cls(name, role, dtype, components)
        raise UnclearSourceError(
            f"line {kernel.line}: `{written}` is of no type that can be passed: numbers, and pointers to numbers, to "
            "vectors and to structs of numbers whose definition is in the file"
        )

    def declared(self, geometry: Geometry, dtype: str) -> str:
        """The argument as written in the declaration of a kernel that computes in that dtype."""
        own = "" if self.dtype in {None, dtype} else f', dtype="{self.dtype}"'
        if self.role:
            axes = (f'"{axis}"' for axis in geometry.shape_of(self.name))
            shape = [*axes, *([str(self.components)] if self.components > 1 else [])]
            return f'Tensor("{self.name}", "{self.role}", shape_of({", ".join(shape)}){own}),'
        axis = self.name.lower()
        value = f'lambda p: p.shape["{axis}"]' if axis in geometry.axes else "lambda _p: 1"
        return f'Scalar("{self.name}", {value}{own}),'

    @property
    def is_size(self) -> bool:
        """Whether it is an integer passed by itself, which counts as the size of an axis; bool and char do not."""
        return not self.role and self.dtype not in {None, "uint8", "int8", *REAL}


def _refuse(written: str, part: str, kind: str, kernel: KernelFunction, *, is_pointer: bool) -> None:
    """Raises UnclearSourceError for a parameter that no declaration can describe."""
    where = f"line {kernel.line}: `{written}`"
    if kind == "cudaTextureObject_t":
        raise UnclearSourceError(
            f"{where} is a texture, whose kind no source tells: write the declaration by hand, with Tensor(…, "
            "texture=Texture(…)) for it (docs/adding-a-kernel.md, Textures)"
        )
    if part.count("*") + ("[" in part) > 1:
        raise UnclearSourceError(
            f"{where} is a pointer to pointers, which a launch cannot pass: pass one array, or one parameter for each"
        )
    if not is_pointer and _VECTOR.fullmatch(kind):
        raise UnclearSourceError(
            f"{where} is a vector by value, which a declaration cannot pass: take its components as single numbers, "
            "or a pointer to it"
        )
    if not is_pointer and kind != "REAL" and not NUMBER.fullmatch(kind):
        raise UnclearSourceError(
            f"{where} is passed by value and is no number: take its members as single parameters, or a pointer to it"
        )


def _role(part: str, name: str, kernel: KernelFunction, uses: PointerUses) -> str:
    """The role: `output` where it is only assigned to, else `inout`, which is always right: launches restore it."""
    found = uses.of(kernel.node, name)
    if re.search(r"\bconst\b", part.partition("*")[0]) or found == {READ}:
        return "input"
    return "output" if found == {ASSIGNED} else "inout"


def _scalar_of(prefix: str) -> str:
    """The C type of a component, by the vector type's name without its count."""
    return re.sub("^u(?=[csil])", "unsigned ", prefix).replace("longlong", "long long")


def _of_fields(fields: list[tuple[str, int]], kind: str, kernel: KernelFunction) -> tuple[str, int]:
    """Dtype and count of the numbers in a struct; of numbers of several types the bytes that it takes."""
    dtypes = []
    for c_type, count in fields:
        vector = _VECTOR.fullmatch(c_type)
        scalar = _scalar_of(vector[1]) if vector else c_type
        if not NUMBER.fullmatch(scalar):
            raise UnclearSourceError(
                f"line {kernel.line}: {kernel.name} takes a pointer to `{kind}`, which has a member of type "
                f"`{c_type}`: only structs of numbers can be passed"
            )
        dtypes.append((dtype_of(scalar), count * (int(vector[2]) if vector else 1)))
    if len({dtype for dtype, _ in dtypes}) == 1:
        return dtypes[0][0], sum(count for _, count in dtypes)
    end, widest = 0, 1
    for dtype, count in dtypes:
        size = ITEM_BYTES[dtype]
        end, widest = -(-end // size) * size + size * count, max(widest, size)
    return "uint8", -(-end // widest) * widest
