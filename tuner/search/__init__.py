"""Searches over a feasible set, by ask and tell."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.search.searcher import RandomSearcher, Searcher, Told
from tilewright.tuner.search.tpe import TpeSearcher

SAMPLERS = ("tpe", "random")
"""The searches by name; the first is the default."""


def make_searcher(
    sampler: str, space: SearchSpace, starts: Sequence[Configuration], seed: int, prior: Sequence[Told] = ()
) -> Searcher:
    """A fresh search of that name, which knows the prior trials; raises ValueError for a name there is not."""
    if sampler == "tpe":
        return TpeSearcher(space, starts, seed, prior)
    if sampler == "random":
        return RandomSearcher(space, starts, seed, prior)
    raise ValueError(f"there is no sampler {sampler!r}; there are {', '.join(SAMPLERS)}")


__all__ = ["SAMPLERS", "RandomSearcher", "Searcher", "Told", "TpeSearcher", "make_searcher"]
