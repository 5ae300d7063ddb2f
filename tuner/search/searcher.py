"""What tune() asks of a search: proposals out, evaluations in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.outcome import Evaluation
from tilewright.tuner.search.unseen import Unseen

Told = tuple[Configuration, Evaluation]


class Searcher(Protocol):
    """A search over one space. It never proposes what is infeasible, nor anything twice."""

    def propose(self) -> Configuration | None:
        """The next configuration to evaluate; None when the space is exhausted. May run ahead of `tell`."""

    def tell(self, configuration: Configuration, evaluation: Evaluation) -> None:
        """Learns from an evaluated proposal."""


class RandomSearcher:
    """Uniform draws without repetition, after the starts: the yardstick for every other search."""

    def __init__(
        self, space: SearchSpace, starts: Sequence[Configuration], seed: int, prior: Sequence[Told] = ()
    ) -> None:
        self.unseen = Unseen(space, np.random.default_rng([seed, len(prior)]))
        self.unseen.take_all(configuration for configuration, _ in prior)
        self._starts = [start for start in dict.fromkeys(starts) if start in self.unseen]

    def propose(self) -> Configuration | None:
        """The next start, then a draw from what is left."""
        proposal = self._starts.pop(0) if self._starts else self.unseen.draw()
        if proposal is not None:
            self.unseen.take(proposal)
        return proposal

    def tell(self, configuration: Configuration, evaluation: Evaluation) -> None:
        """Nothing: chance does not learn."""
