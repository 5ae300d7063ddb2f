"""The arrays in `__constant__` memory that a source leaves to its host program to fill."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.kernels.dtypes import REAL
from tilewright.tuner.cuda_source.c_types import NUMBER, aliases_in, dtype_of, macros_in, without_aliases

_ARRAY = re.compile(r"__constant__\s+(?:__device__\s+)?(?:const\s+)?([\w: ]+?)\s+(\w+)\s*((?:\[[^\]]+\]\s*)*);")
_NUMBER_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*)$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
MOST_MACROS = 16
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


@dataclass(frozen=True)
class ConstantArray:
    """An array in constant memory: its dtype (None is REAL), its shape, and the macros that the shape is made of."""

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    macros: frozenset[str]


def constant_arrays(source: str) -> Iterator[ConstantArray]:
    """Arrays of numbers that the source (without comments) declares without contents, as far as they can be read.

    A single number is an array of one.
    """
    macros = {found[1]: found[2] for found in _NUMBER_MACRO.finditer(source)}
    aliases = macros_in(source) | dict(aliases_in(source))
    for found in _ARRAY.finditer(source):
        kind = " ".join(without_aliases(found[1], aliases).split())
        sizes = [_resolved(one, macros) for one in re.findall(r"\[([^\]]+)\]", found[3])]
        shape = [value for text, _ in sizes if (value := _value(text)) is not None]
        if len(shape) == len(sizes) and (kind == "REAL" or NUMBER.fullmatch(kind)):
            dtype = None if kind == "REAL" else dtype_of(kind)
            yield ConstantArray(found[2], dtype, tuple(shape) or (1,), frozenset().union(*(used for _, used in sizes)))


def declared(array: ConstantArray, dtype: str) -> str:
    """The array as written in the declaration of a kernel that computes in that dtype."""
    own = "" if array.dtype in {None, dtype} and dtype in REAL else f', dtype="{array.dtype}"'
    shape = ", ".join(map(str, array.shape))
    return f'Tensor("{array.name}", "input", shape_of({shape}), symbol="{array.name}"{own}),'


def _resolved(text: str, macros: Mapping[str, str]) -> tuple[str, set[str]]:
    """The text with macros replaced by theirs, and which macros that were."""
    used: set[str] = set()
    for _ in range(MOST_MACROS):
        names = [name for name in _WORD.findall(text) if name in macros]
        if not names:
            break
        used |= set(names)
        text = _WORD.sub(lambda word: f"({macros[word[0]]})" if word[0] in macros else word[0], text)
    return text, used


def _value(text: str) -> int | None:
    """The value of an expression of whole numbers; None of anything else."""
    try:
        return _of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _of(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_of(node.left), _of(node.right)))
    raise ValueError
