"""Mangled names of functions (Itanium C++ ABI, 5.1), as far as they name a function without template arguments."""

from __future__ import annotations

import re

_LENGTH = re.compile(r"\d+")


def unmangled(name: str) -> str | None:
    """The function's name with its namespaces, `_ZN4mine5scaleEPfi` is `mine::scale`; None of a template's instance.

    A name that is not mangled comes back as it is.
    """
    if not name.startswith("_Z"):
        return name
    rest = name[2:].removeprefix("L")
    is_nested = rest.startswith("N")
    rest, words = rest.removeprefix("N"), list[str]()
    while found := _LENGTH.match(rest):
        end = found.end() + int(found[0])
        words.append(rest[found.end() : end])
        rest = rest[end:]
        if not is_nested:
            break
    is_whole = words and (rest.startswith("E") if is_nested else not rest.startswith("I"))
    return "::".join(words) if is_whole else None
