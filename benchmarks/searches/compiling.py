"""A bench on a clock of its own: several compile at a time while one is measured, as in a job on a GPU."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Bench

COMPILE_S, COMPILE_SIGMA, TRIAL_S = 0.44, 0.4, 0.0079
"""Mean and logarithmic deviation of one compilation, and what measuring takes: with 16 compilers 36 trials a second.
That and 127 to 136 a second with a warm cache were measured for gemm on an H200's host."""


class CompilingBench(Bench):
    """Says what is compiled when; measures nothing. `now_s` is its clock, which only `ready` and `measured` move."""

    compiles_ahead = True

    def __init__(self, compilers: int, seed: int) -> None:
        self._free_s, self._done_s = [0.0] * compilers, dict[Configuration, float]()
        self._rng, self.now_s = np.random.default_rng(seed), 0.0

    @property
    def compilers(self) -> int:
        """How many it compiles at a time."""
        return len(self._free_s)

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:
        """Gives each to the compiler that is free first."""
        for configuration in configurations:
            takes_s = COMPILE_S * self._rng.lognormal(-(COMPILE_SIGMA**2) / 2, COMPILE_SIGMA)
            self._done_s[configuration] = max(self.now_s, heapq.heappop(self._free_s)) + takes_s
            heapq.heappush(self._free_s, self._done_s[configuration])

    def ready(self, configurations: Sequence[Configuration], *, wait: bool) -> list[Configuration]:
        """Those that are compiled, in the order given; with `wait`, once the first of them is."""
        if wait:
            self.now_s = max(self.now_s, min(self._done_s[c] for c in configurations))
        return [c for c in configurations if self._done_s[c] <= self.now_s]

    def measured(self, configuration: Configuration) -> float:
        """The time at which this one, if need be waited for, has been measured."""
        self.now_s = max(self.now_s, self._done_s[configuration]) + TRIAL_S
        return self.now_s

    def compile(self, configuration: Configuration) -> None:
        """Nothing to run: raises NotImplementedError, like the next two."""
        raise NotImplementedError

    def verify(self, executable: object) -> None:
        """Not here."""
        raise NotImplementedError

    def sample(self, executable: object, l2: str, count: int) -> None:
        """Not here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""
