"""Registers per thread of a configuration: reported by a compiler, or estimated from similar configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.model import Smooth

FEWEST_TOLD = 16
"""Compiled configurations below which nothing is estimated."""

MOST_TOLD = 2000
"""Compiled configurations that an estimate rests on."""


@dataclass(frozen=True)
class RegisterEstimate:
    """The logarithm of registers by parameters, and the least and the most that a compiler reported."""

    function: Smooth
    least: int
    most: int


@dataclass(frozen=True)
class Registers:
    """Registers by configuration: `known` from the compiler; `parameters` gives a configuration's as numbers.

    Without an estimate one that nobody compiled would seem to leave room for as many blocks as there are threads
    (docs/measuring/predictions.md).
    """

    known: Mapping[Configuration, int]
    parameters: Callable[[Configuration], list[float]]
    given: RegisterEstimate | None = None  # of an earlier time with the same registers

    def of(self, configurations: Sequence[Configuration]) -> list[int]:
        """Registers per thread of each; 0 where too few were compiled for an estimate."""
        registers = {c: self.known[c] for c in configurations if self.known.get(c)}
        unknown = [c for c in configurations if c not in registers]
        if unknown and self.estimate is not None:
            values = self.estimate.function.values(np.array([self.parameters(c) for c in unknown]))
            estimates = np.clip(np.exp(values), self.estimate.least, self.estimate.most)
            registers |= {c: round(float(count)) for c, count in zip(unknown, estimates, strict=True)}
        return [registers.get(c, 0) for c in configurations]

    @cached_property
    def estimate(self) -> RegisterEstimate | None:
        """From which the others are estimated; None where too few were compiled."""
        if self.given is not None:
            return self.given
        compiled = [(configuration, count) for configuration, count in self.known.items() if count]
        if len(compiled) < FEWEST_TOLD:
            return None
        chosen = compiled[:: -(-len(compiled) // MOST_TOLD)]
        rows = np.array([self.parameters(configuration) for configuration, _ in chosen])
        counts = [count for _, count in chosen]
        return RegisterEstimate(Smooth.fit(rows, np.log(counts)), min(counts), max(counts))
