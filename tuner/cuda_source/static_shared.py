"""The static shared memory of a function, as an expression of its parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.tuner.cuda_source.arithmetic import Names, chosen, negated, python_of
from tilewright.tuner.cuda_source.c_types import NUMBER, dtype_of

_DECLARED = re.compile(r"(\bextern\s+)?\b__shared__\s+(?:volatile\s+)?([\w ]+?)\s+(\w+)\s*((?:\[[^\]]*\]\s*)*);")
_VECTOR = re.compile(r"(float|double|int|uint)([234])")
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif|define|undef)\b[ \t]*(.*)")
_DEFINITION = re.compile(r"(\w+)(?![(\w])[ \t]*(.*)")
_CONSTANT = re.compile(r"\b(?:const|constexpr)\s+(?:static\s+)?(?:unsigned\s+)?(?:u?int\w*|size_t|long)\s+(\w+)\s*=\s*([^;,]+)[;,]")  # fmt: skip  # noqa: E501
ALIGNMENT = 16
MOST_CHARACTERS = 4000


def static_shared_bytes(body: str, source: str, parameters: Collection[str]) -> str | None:
    """Bytes as a Python expression of `c` (and `p` for REAL), or an upper bound where a condition cannot be told.

    "" where the function has none, None where a size or a type cannot be told. `body` is what stands between the
    function's braces, `source` what defines its macros, both without comments.
    """
    parts: list[str] = []
    sizes: set[int | str] = set()
    for kind, dimensions, condition in _Reading(parameters).declarations(source, body):
        item_bytes = _bytes_of(kind)
        if item_bytes is None or None in dimensions:
            return None
        sizes.add(item_bytes)
        factors = [f"({one})" for one in (*dimensions, *([] if condition == "1" else [condition]))]
        parts.append(" * ".join([str(item_bytes), *factors]))
    if len(sizes) > 1:  # what follows a smaller type may begin later
        parts = [f"-(-{part} // {ALIGNMENT}) * {ALIGNMENT}" for part in parts]
    text = " + ".join(parts)
    if not parts or len(text) > MOST_CHARACTERS:
        return None if parts else ""
    return ast.unparse(ast.parse(text, mode="eval"))


class _Reading:
    """A reading of a source from its beginning, as a preprocessor reads it, for all values of the parameters."""

    def __init__(self, parameters: Collection[str]) -> None:
        self._names = Names(parameters)
        self._conditions: list[tuple[str | None, str | None]] = []  # each with that of none of its branches before

    def declarations(self, source: str, body: str) -> Iterator[tuple[str, list[str | None], str]]:
        """The C type, the dimensions and the condition of each array in the body."""
        before, found, _ = source.partition(body)
        list(self._lines(before if found else source))
        for line, condition in self._lines(body):
            for array in _DECLARED.finditer(line):
                if not array[1]:
                    dimensions = re.findall(r"\[([^\]]*)\]", array[4])
                    yield array[2], [python_of(one, self._names) for one in dimensions], condition or "1"

    def _lines(self, text: str) -> Iterator[tuple[str, str | None]]:
        """Every line that is no directive and may be compiled, with its condition; None where that cannot be told."""
        for line in text.replace("\\\n", " ").split("\n"):
            directive = _DIRECTIVE.match(line)
            condition = self._condition
            if directive is None:
                if condition != "0":
                    for constant in _CONSTANT.finditer(line):
                        self._names.define(constant[1], constant[2], condition)
                    yield line, condition
            elif directive[1] in {"define", "undef"}:
                definition = _DEFINITION.match(directive[2])
                if definition is not None and condition != "0":
                    self._names.define(definition[1], definition[2] if directive[1] == "define" else None, condition)
            else:
                self._branch(directive[1], directive[2].strip())

    @property
    def _condition(self) -> str | None:
        """The condition under which all enclosing branches are taken."""
        if any(one == "0" for one, _ in self._conditions):
            return "0"
        if any(one is None for one, _ in self._conditions):
            return None
        around = dict.fromkeys(one for one, _ in self._conditions if one is not None and one != "1")
        return " * ".join(f"({one})" for one in around) or "1"

    def _branch(self, kind: str, text: str) -> None:
        if kind == "endif" or (kind in {"elif", "else"} and not self._conditions):
            self._conditions = self._conditions[:-1]
            return
        rest: str | None = "1"
        if kind in {"elif", "else"}:
            _, rest = self._conditions.pop()
        if kind == "else":
            own: str | None = "1"
        elif kind == "ifdef":
            own = self._names.is_defined(text)
        elif kind == "ifndef":
            own = negated(self._names.is_defined(text))
        else:
            own = python_of(text, self._names)
        self._conditions.append((chosen(rest, own, "0"), chosen(rest, negated(own), "0")))


def _bytes_of(kind: str) -> int | str | None:
    if kind == "REAL":
        return "p.item_bytes"
    vector = _VECTOR.fullmatch(kind)
    scalar = vector[1].replace("uint", "unsigned int") if vector else kind
    if not NUMBER.fullmatch(scalar):
        return None
    return ITEM_BYTES[dtype_of(scalar)] * (int(vector[2]) if vector else 1)
