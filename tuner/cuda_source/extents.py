"""The bounds of a kernel's indices: its numbers that bound the threads along each axis, its arrays' shapes.

A guess from how kernels are usually written: `int x = blockIdx.x * TILE + threadIdx.x; if (x < width) y[r * width + x]`
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property

from tree_sitter import Node

from tilewright.tuner.cuda_source.tree import KernelFunction, defined_name, descendants, names_in, text_of

_COMPARISONS = frozenset({"<", "<=", ">", ">=", "!="})
_THREAD = re.compile(r"\b(?:blockIdx|threadIdx)\s*\.\s*([xyz])\b")
_BUILT_IN = re.compile(r"\b(?:blockIdx|threadIdx|blockDim)\s*\.\s*([xyz])\b")
_PER_BLOCK = r"\bblockIdx\s*\.\s*{axis}\s*\*\s*(\w+)\b|(?<![.\w])(\w+)(?:\.[xyz])?\s*\*\s*blockIdx\s*\.\s*{axis}\b"
_PRODUCT = re.compile(r"\w+(?:\s*\*\s*\w+)*")

Bound = tuple[str, ...]
"""The names of the numbers whose product is the bound."""


class Extents:
    """Bounds on indices that a kernel's body states. `numbers` are the names of its integer parameters."""

    def __init__(self, kernel: KernelFunction, numbers: Collection[str]) -> None:
        self._body = kernel.node.child_by_field_name("body")
        self._numbers = frozenset(numbers)

    @cached_property
    def axes(self) -> list[str]:
        """The axes among x, y and z that the kernel asks for; x where it asks for none."""
        return sorted(set(_BUILT_IN.findall(text_of(self._body))) or {"x"})

    @cached_property
    def is_one_block(self) -> bool:
        """Whether the kernel and its functions never ask for the block's index: all blocks would do the same."""
        root = self._body
        while root is not None and root.parent is not None:
            root = root.parent
        called = names_in(self._body) if self._body else set()
        functions = (one for one in (descendants(root) if root else ()) if one.type == "function_definition")
        beside = (one for one in functions if defined_name(one) in called)
        return not any("blockIdx" in text_of(one) for one in (self._body, *beside) if one is not None)

    @cached_property
    def along(self) -> dict[str, Bound]:
        """The bound of the threads along x, y and z, as far as a comparison or an index tells it."""
        found: dict[str, Bound] = {}
        for name, axis in self._indices.items():
            for bound in self._bounds.get(name, ()):
                found.setdefault(axis, bound)
        for text, (row, width, column) in self._linear.items():
            if column in self._indices:
                found.setdefault(self._indices[column], (width,))
            if row in self._indices:  # a row that nothing bounds has what no other axis has
                named = {name for bound in self._bounds.get(text, ()) for name in bound} or self._numbers
                free = [one for one in sorted(named) if (one,) not in found.values() and one != width]
                if len(free) == 1:
                    found.setdefault(self._indices[row], (free[0],))
        return found

    @cached_property
    def loops(self) -> set[str]:
        """The numbers that bound something else, such as a loop."""
        named = {name for bounds in self._bounds.values() for bound in bounds for name in bound}
        return named - {name for bound in self.along.values() for name in bound}

    def per_block(self, axis: str) -> str:
        """The factor of the block's index along the axis: a name such as `TILE`, or "" where the source has none."""
        found = re.search(_PER_BLOCK.format(axis=axis), text_of(self._body))
        return (found[1] or found[2]) if found else ""

    def shape_of(self, array: str) -> list[str] | None:
        """The array's shape by its indices `row * width + column`; None where they are not all of that form."""
        shapes = set()
        for index in self._indices_of(array):
            row, width, _ = self._linear_form(index) or ("", "", "")
            rows = [bound[0] for bound in self._bounds.get(row, ()) if len(bound) == 1 and bound[0] != width]
            shapes.add((rows[0], width) if rows and width else None)
        return list(*shapes) if len(shapes) == 1 and None not in shapes else None

    @cached_property
    def _values(self) -> list[tuple[str, str]]:
        """Each variable with each text that it is given, in their order."""
        found = []
        for one in self._nodes("init_declarator", "assignment_expression"):
            name = one.child_by_field_name("declarator") or one.child_by_field_name("left")
            value = one.child_by_field_name("value") or one.child_by_field_name("right")
            found.append((text_of(name), text_of(value)))
        return found

    @cached_property
    def _indices(self) -> dict[str, str]:
        """The axis of each variable that holds a thread's index, directly or through another variable."""
        found: dict[str, str] = {}
        for name, value in self._values:
            axes = dict.fromkeys(_THREAD.findall(value))
            if axes:
                found.setdefault(name, "x" if "x" in axes else next(iter(axes)))
            elif value in found:
                found.setdefault(name, found[value])
        return found

    @cached_property
    def _bounds(self) -> dict[str, list[Bound]]:
        """The bounds that each variable is compared with."""
        found: dict[str, list[Bound]] = {}
        for one in self._nodes("binary_expression"):
            if text_of(one.child_by_field_name("operator")) in _COMPARISONS:
                left, right = (text_of(one.child_by_field_name(side)) for side in ("left", "right"))
                for name, other in ((left, right), (right, left)):
                    bound = self._bound(other)
                    if bound and re.fullmatch(r"\w+", name) and name not in self._numbers:
                        found.setdefault(name, []).append(bound)
        return found

    def _bound(self, text: str) -> Bound | None:
        """The bound in `n`, `(w * h)` or `n - 1`; None where it has names other than numbers that are passed."""
        product = re.sub(r"\s*-\s*\w+$", "", text.strip("() \n"))
        if not _PRODUCT.fullmatch(product):
            return None
        names = tuple(one.strip() for one in product.split("*"))
        return names if self._numbers.issuperset(names) else None

    @cached_property
    def _linear(self) -> dict[str, tuple[str, str, str]]:
        """Row, width and column of each index that has the form, and of each variable set to one, by its text."""
        texts = [value for _, value in self._values]
        texts += [text_of(one.child_by_field_name("indices"))[1:-1] for one in self._nodes("subscript_expression")]
        texts += [name for name, _ in self._values]
        return {text: form for text in texts if (form := self._linear_form(text))}

    def _linear_form(self, index: str) -> tuple[str, str, str] | None:
        """Row, width and column of `row * width + column`, in any order; None for other expressions."""
        text = re.sub(r"[()\s]", "", dict(self._values).get(index, index))
        for pattern in (r"(\w+)\*(\w+)\+(\w+)", r"(\w+)\+(\w+)\*(\w+)"):
            parts = re.fullmatch(pattern, text)
            if parts:
                one, other, column = parts.groups() if pattern.endswith(r"\+(\w+)") else (parts[2], parts[3], parts[1])
                if other in self._numbers and one not in self._numbers:
                    return one, other, column
                if one in self._numbers and other not in self._numbers:
                    return other, one, column
        return None

    def _indices_of(self, array: str) -> Iterator[str]:
        for one in self._nodes("subscript_expression"):
            if text_of(one.child_by_field_name("argument")) == array:
                yield text_of(one.child_by_field_name("indices"))[1:-1]

    def _nodes(self, *types: str) -> Iterator[Node]:
        return (one for one in (descendants(self._body) if self._body else ()) if one.type in types)
