"""C types of parameters and arrays, and the dtypes that they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NUMBER = re.compile(
    r"(?:(?:unsigned|signed|long|short|int|char|bool)\s*)+|float|double|size_t|u?int(?:8|16|32|64)_t|u(?:char|short|int|long)"
    r"|(?:__)?half|(?:__)?nv_bfloat16"
)
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([\w\s]+?)\s*;|\btypedef\s+([\w\s]+?)\s+(\w+)\s*;")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([A-Za-z_][\w: \t]*?)[ \t]*(?://.*)?$", re.MULTILINE)
_MOST_ALIASES = 8  # an alias of an alias
_QUALIFIER = re.compile(r"\b(?:__restrict__|__restrict|restrict|volatile|__grid_constant__|struct)\b|\[\[.*?\]\]")


def aliases_in(text: str) -> list[tuple[str, str]]:
    """The name and the type of each `using` and `typedef` of a plain type, in the order of the text."""
    return [(found[1] or found[4], found[2] or found[3]) for found in _ALIAS.finditer(text)]


def macros_in(text: str) -> dict[str, str]:
    """The words of each macro, by its name, that stands for words alone, as a type's does."""
    return {found[1]: found[2] for found in _MACRO.finditer(text)}


def without_aliases(part: str, aliases: Mapping[str, str]) -> str:
    """The parameter with each alias replaced by its type."""
    for _ in range(_MOST_ALIASES):
        part = re.sub(r"\b\w+\b", lambda word: aliases.get(word[0], word[0]), part)
    return part


def type_of(part: str) -> tuple[str, bool]:
    """The C type of a parameter without qualifiers and name, and whether it is a pointer to it."""
    head = _QUALIFIER.sub(" ", re.split(r"[*\[]", part)[0]).replace("std::", " ")
    words = [word for word in head.split() if word != "const"]
    if len(words) > 1 and ("*" not in part):
        words.pop()  # the parameter's name
    return " ".join(words), "*" in part or part.endswith("]")


def dtype_of(kind: str) -> str:
    """The dtype of a C type that NUMBER matches, on a platform of CUDA's."""
    fixed = re.fullmatch(r"(u?int\d+)_t", kind)
    if fixed:
        return fixed[1]
    if kind.endswith(("half", "bfloat16")):
        return "float16" if kind.endswith("half") else "bfloat16"
    short = re.fullmatch(r"u(char|short|int|long)", kind)
    words = {"unsigned", short[1]} if short else set(["unsigned", "long"] if kind == "size_t" else kind.split())
    if words <= {"float", "double"}:
        return "float32" if kind == "float" else "float64"
    if "bool" in words:
        return "uint8"
    bits = next((size for word, size in {"char": 8, "short": 16, "long": 64}.items() if word in words), 32)
    return f"{'u' * ('unsigned' in words)}int{bits}"
