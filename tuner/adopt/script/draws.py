"""Large random arrays of a script, each drawn from a seed of its own: a seed says what would fill a file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

METHODS = {
    "rand": "random_sample",
    "random": "random_sample",
    "random_sample": "random_sample",
    "randn": "standard_normal",
    "standard_normal": "standard_normal",
}
"""Functions of numpy.random, and what a RandomState calls the same."""

LARGE = 1 << 20
"""Elements of an array for which it is worth it."""

_DRAWN: list[tuple[str, int, int]] = []  # method, elements, and the seed of each large array


def install() -> None:
    """Makes numpy.random draw large arrays in a way that can be drawn again, whatever seed the script has set."""
    for name in METHODS:
        setattr(np.random, name, _seeded(name, getattr(np.random, name)))


def _seeded(name: str, real: Any) -> Any:
    def drawn(*given: Any, **options: Any) -> Any:
        size = options.get("size", given if name in {"rand", "randn"} else next(iter(given), None))
        elements = math.prod(np.atleast_1d(size).tolist()) if size else 0
        if elements < LARGE:
            return real(*given, **options)
        _DRAWN.append((METHODS[name], elements, len(_DRAWN)))
        return getattr(np.random.RandomState(_DRAWN[-1][-1]), METHODS[name])(size)

    return drawn


def drawn_again(array: Any) -> dict[str, Any] | None:
    """A recipe that draws exactly these contents again, in this order and dtype; None where they are something else."""
    flat = array.reshape(-1)
    for method, elements, seed in _DRAWN:
        state = np.random.RandomState(seed)
        parts = (flat[start : start + LARGE] for start in range(0, flat.size, LARGE))
        if elements == flat.size and all(
            np.array_equal(getattr(state, method)(part.size).astype(flat.dtype), part) for part in parts
        ):
            return {"kind": "seeded", "method": method, "seed": seed, "elements": elements, "dtype": flat.dtype.name}
    return None
