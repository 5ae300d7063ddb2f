"""The interface between tune() and a search: proposals out, evaluations in, priors beforehand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.kernels.space import Configuration
from tilewright.tuner.outcome import Evaluation

SAMPLERS = ("gp", "tpe", "random")
"""The searches by name; the first is the default. docs/measuring/search.md compares them."""

Evaluated = tuple[Configuration, Evaluation]


@dataclass(frozen=True)
class Prior:
    """A record of the same kernel made elsewhere: another shape, another device model, an older environment.

    `entries`: configurations with their time over the best time of that record, infinite where they failed; they need
    not be feasible here. `similarity` in (0, 1] is how far it is trusted before this study has trials of its own.
    """

    source: str
    entries: Sequence[tuple[Configuration, float]]
    similarity: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise ValueError(f"prior {self.source}: a similarity lies above 0 and is at most 1, not {self.similarity}")
        slowdowns = [slowdown for _, slowdown in self.entries]
        if any(not slowdown >= 1 for slowdown in slowdowns):  # NaN included
            raise ValueError(f"prior {self.source}: times are over the record's best, so none is below 1")

    @classmethod
    def of(
        cls,
        source: str,
        evaluated: Sequence[Evaluated],
        similarity: float = 0.8,
        barred: Collection[Configuration] = (),
    ) -> Prior:
        """The prior made of these trials. `barred` configurations were found wrong later: they count as failed."""
        times_ms = [(c, None if c in barred else e.time_ms) for c, e in evaluated]
        best_ms = min((time_ms for _, time_ms in times_ms if time_ms is not None), default=1.0)
        entries = [(c, float("inf") if time_ms is None else time_ms / best_ms) for c, time_ms in times_ms]
        return cls(source, entries, similarity)


class Searcher(Protocol):
    """A search over one space. It never proposes what is infeasible, nor anything twice."""

    def propose(self) -> Configuration | None:
        """The next configuration to evaluate; None when the space is exhausted. May run ahead of `tell`."""

    def tell(self, configuration: Configuration, evaluation: Evaluation) -> None:
        """Learns from an evaluated proposal."""
