"""Proposals from a kernel's source: its name, and macros as parameters with values around their own."""

from __future__ import annotations

import re
from collections.abc import Collection

from tilewright.tuner.cuda_source.c_types import COMMENT

_DEFINITIONS = re.compile(r"^[ \t]*#[ \t]*define\b.*$", re.MULTILINE)
_NUMBER_DEFINED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?!SHAPE_|REAL)(\w{2,})[ \t]+([1-9]\d*)[ \t]*(?://.*)?$", re.MULTILINE
)
_GUARD = re.compile(r"#[ \t]*ifndef[ \t]+(\w+)[ \t]*\n[ \t]*$")
_BLOCK = re.compile(r"block|(?<!per_)(?<!per)thread", re.IGNORECASE)

MOST_THREADS, FARTHEST = 1024, 4
"""Values are proposed up to a block's most threads, and from a quarter of the source's own to four times as much."""

Values = tuple[int, list[int]]
"""The default of a parameter, and all its values."""


def proposed_macros(source: str) -> dict[str, Values]:
    """Default and values of each macro that is a number and is used."""
    text, proposed = COMMENT.sub(" ", source), {}
    for found in _NUMBER_DEFINED.finditer(text):
        name, default = found[1], int(found[2])
        if is_used(name, text):
            proposed[name] = default, values_around(default, is_block=names_a_block(name))
    return proposed


def defined_number(name: str, source: str) -> int | None:
    """The number that the source defines the macro as; None where it is no number."""
    numbers = {found[1]: int(found[2]) for found in _NUMBER_DEFINED.finditer(COMMENT.sub(" ", source))}
    return numbers.get(name)


def is_used(name: str, text: str) -> bool:
    """Whether the text, which has no comments, uses the macro outside of definitions."""
    return re.search(rf"\b{name}\b", _DEFINITIONS.sub(" ", re.sub(r"#[ \t]*ifn?def.*", " ", text))) is not None


def names_a_block(name: str) -> bool:
    """Whether a parameter of that name says how many threads a block has."""
    return _BLOCK.search(name) is not None


def values_around(default: int, *, is_block: bool) -> list[int]:
    """The default and the powers of two around it; threads of a block are no more than a block may have."""
    most = min(FARTHEST * default, MOST_THREADS) if is_block else FARTHEST * default
    powers = (1 << e for e in range(most.bit_length()))
    return sorted({default, *(n for n in powers if default <= FARTHEST * n and n <= most)})


def with_guards(source: str) -> str:
    """The source, which takes each parameter from outside where it is given."""

    def guarded(found: re.Match[str]) -> str:
        guard = _GUARD.search(source, 0, found.start())
        is_guarded = guard is not None and guard[1] == found[1]
        return found[0] if is_guarded else f"#ifndef {found[1]}\n{found[0]}\n#endif"

    return _NUMBER_DEFINED.sub(guarded, source)


def unique_name(function: str, taken: Collection[str]) -> str:
    """The name of the function's kernel in Tilewright: lower case, without namespaces, and not taken."""
    bare = function.partition("<")[0].rpartition("::")[2].strip().lower()
    name = re.sub(r"^[^a-z]+", "", re.sub(r"\W", "_", bare)) or "kernel"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
