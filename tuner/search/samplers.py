"""Searches by name. Importing this imports Optuna, which takes a fifth of a second."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.search.feasible import FeasibleSampler, RandomSampler, StudySearcher
from tilewright.tuner.search.gaussian import GaussianSampler
from tilewright.tuner.search.searcher import SAMPLERS, Evaluated, Prior, Searcher
from tilewright.tuner.search.snapping import SnappingSampler


def make_sampler(
    sampler: str, space: SearchSpace, starts: Sequence[Configuration], seed: int, priors: Sequence[Prior] = ()
) -> FeasibleSampler:
    """A fresh Optuna sampler of that name; only `gp` uses priors. Raises ValueError for a name there is not."""
    if sampler == "gp":
        return GaussianSampler(space, seed, starts, priors)
    if sampler == "tpe":
        return SnappingSampler(space, seed, starts)
    if sampler == "random":
        return RandomSampler(space, seed, starts)
    raise ValueError(f"there is no sampler {sampler!r}. Samplers: {', '.join(SAMPLERS)}")


def make_searcher(
    sampler: str,
    space: SearchSpace,
    starts: Sequence[Configuration],
    seed: int,
    evaluated: Sequence[Evaluated] = (),
    *,
    priors: Sequence[Prior] = (),
) -> Searcher:
    """A fresh search of that name, which knows the trials of its own study so far and the priors made elsewhere."""
    # A resumed study draws anew: with the seed alone it would repeat its first draws.
    return StudySearcher(space, evaluated, make_sampler(sampler, space, starts, seed + len(evaluated), priors))
