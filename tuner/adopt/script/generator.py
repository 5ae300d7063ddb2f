"""The texts of a function that makes the source from a configuration: one for each case that it tells apart.

It is called with symbols in place of numbers. Where it only writes a parameter into the source, the symbol writes the
parameter's name, which is a macro of the source. A parameter that it needs as a number is enumerated.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .functions import UnclearError, is_plain

MOST_CASES, MOST_CHARACTERS = 512, 2_000_000
TRIED = 24
"""Configurations for which the text is compared with what the function makes of their numbers."""


class NeedsNumberError(Exception):
    """The function needs a parameter as a number."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


class Symbol:
    """A parameter that is written by its name, also in sums and products."""

    def __init__(self, name: str, text: str | None = None) -> None:
        self._name, self._text = name, text or name

    def __str__(self) -> str:
        return self._text

    def __format__(self, _form: str) -> str:
        return self._text

    def _with(self, other: Any, sign: str, *, turned: bool = False) -> Symbol:
        if not isinstance(other, int | Symbol):
            raise NeedsNumberError(self._name)
        left, right = (other, self) if turned else (self, other)
        return Symbol(self._name, f"({left} {sign} {right})")

    def __add__(self, other: Any) -> Symbol:
        return self._with(other, "+")

    def __radd__(self, other: Any) -> Symbol:
        return self._with(other, "+", turned=True)

    def __sub__(self, other: Any) -> Symbol:
        return self._with(other, "-")

    def __rsub__(self, other: Any) -> Symbol:
        return self._with(other, "-", turned=True)

    def __mul__(self, other: Any) -> Symbol:
        return self._with(other, "*")

    def __rmul__(self, other: Any) -> Symbol:
        return self._with(other, "*", turned=True)

    def _needed(self, *_arguments: object) -> Any:
        raise NeedsNumberError(self._name)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __index__ = __float__ = _needed
    __floordiv__ = __truediv__ = __mod__ = __pow__ = __hash__ = __len__ = __iter__ = _needed


def sources(make: Callable[[Mapping[str, Any]], str], parameters: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """`{"when": values by parameter, "text": source}` for each case; raises UnclearError."""
    numbers = [name for name, values in parameters.items() if len(values) == 1 or not is_plain(name, values)]
    while True:
        try:
            cases = list(_cases(make, parameters, numbers))
        except NeedsNumberError as needed:
            if needed.name in numbers:
                raise UnclearError(f"the function that makes the source needs {needed.name} as a number") from needed
            numbers.append(needed.name)
            continue
        if not _differ(make, parameters, cases):
            return cases
        left = [name for name in parameters if name not in numbers]
        numbers.append(min(left, key=lambda name: len(parameters[name])))


def _cases(
    make: Callable[[Mapping[str, Any]], str], parameters: Mapping[str, Sequence[Any]], numbers: Sequence[str]
) -> Any:
    count = math.prod(len(parameters[name]) for name in numbers)
    if count > MOST_CASES:
        raise UnclearError(f"the function that makes the source makes {count} different ones; {MOST_CASES} are taken")
    size = 0
    symbols = {name: Symbol(name) for name in parameters}
    for values in itertools.product(*(parameters[name] for name in numbers)):
        when = dict(zip(numbers, values, strict=True))
        text = str(make(symbols | when))
        size += len(text)
        if size > MOST_CHARACTERS:
            raise UnclearError(f"the function that makes the source makes over {MOST_CHARACTERS} characters")
        yield {"when": when, "text": text}


def _differ(
    make: Callable[[Mapping[str, Any]], str], parameters: Mapping[str, Sequence[Any]], cases: Sequence[dict[str, Any]]
) -> bool:
    """Whether a case's text differs from what the function makes of a configuration's numbers."""
    generator = random.Random(0)
    for _ in range(TRIED):
        configuration = {name: generator.choice(list(values)) for name, values in parameters.items()}
        case = next(one for one in cases if one["when"].items() <= configuration.items())
        symbols = {name: str(one) for name, one in configuration.items() if name not in case["when"]}
        written = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: symbols.get(word[0], word[0]), case["text"])  # noqa: B023
        if _folded(written) != _folded(str(make(configuration))):
            return True
    return False


_SUM = re.compile(r"\((-?\d+) ([-+*]) (-?\d+)\)")


def _folded(text: str) -> str:
    """The text with its sums and products of two numbers worked out."""
    signs = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    while (folded := _SUM.sub(lambda found: str(signs[found[2]](int(found[1]), int(found[3]))), text)) != text:
        text = folded
    return text
