"""Recordings with known times and noise, for tests of the search and of the measuring, and `tune()` over one."""

import itertools
from dataclasses import fields

import numpy as np

from tilewright.kernels.space import Configuration, choice
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.tune import Hooks, Knowledge, tune
from tilewright.tuner.outcome import Outcome, Resources, Verification
from tilewright.tuner.recorded.recordings import Entry, Recording
from tilewright.tuner.recorded.replay import ReplayBench, replay

TILES, UNROLLS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 4, 8)


def entry(time_ms, *, noise=0.002, seed=0, count=40, cold_factor=1.5):
    rng = np.random.default_rng([seed, 17])
    warm = time_ms * (1 + noise * rng.standard_normal(count))
    return Entry(Outcome.MEASURED, {"warm": tuple(warm.tolist()), "cold": tuple((cold_factor * warm).tolist())}, 3.0)


def failed(outcome, log="as recorded"):
    return Entry(outcome, log=log)


def of(entries, **parameters):
    """A recording with these entries; parameters by variant as (name, values)."""
    listed = {variant: tuple(choice(n, *v) for n, v in items) for variant, items in parameters.items()}
    return Recording("made", "Made Device", {"n": 64}, entries, listed)


def valley(**kwargs):
    """64 points of two variants, the best `fine TILE=16 UNROLL=4` at 1 ms; `coarse` is slower throughout."""
    entries = {}
    for seed, (tile, unroll) in enumerate(itertools.product(TILES, UNROLLS)):
        steps = abs(TILES.index(tile) - 4) + 2 * abs(UNROLLS.index(unroll) - 2)
        for variant, factor in (("fine", 1.0), ("coarse", 4.0)):
            configuration = Configuration.of(variant, {"TILE": tile, "UNROLL": unroll})
            entries[configuration] = entry(factor * (1 + 0.2 * steps), seed=seed, **kwargs)
    axes = [("TILE", TILES), ("UNROLL", UNROLLS)]
    return of(entries, coarse=axes, fine=axes)


class Exe:
    def __init__(self, samples):
        self.resources, self.compile_ms, self.samples = Resources(), 0.0, samples


class BenchWithLibrary(ReplayBench):
    """A replay that also has a library call, a clock that drifts, and finalists that go wrong late."""

    def __init__(self, recording, library_ms=None, drift=0.0, wrong_after=None, sticky=None):
        super().__init__(recording)
        self.library_ms, self.drift, self.wrong_after, self.sticky = library_ms, drift, wrong_after or {}, sticky
        self.rng, self.verified, self.order = np.random.default_rng(5), [], []
        self._configuration_of = {}

    def compile(self, configuration):
        executable = super().compile(configuration)
        self._configuration_of[id(executable)] = (configuration, executable)
        return executable

    def verify(self, executable):
        configuration = self._configuration_of[id(executable)][0]
        self.verified.append(configuration)
        if configuration == self.sticky:
            raise TrialFailure(Outcome.LAUNCH_FAILED, "illegal address", sticky=True)
        if configuration in self.wrong_after and self.verified.count(configuration) > self.wrong_after[configuration]:
            return Verification(bound_ratio=7.0, wrong=3, first_wrong=(0, 1))
        return super().verify(executable)

    def library(self):
        return None if self.library_ms is None else Exe([self.library_ms])

    def library_name(self):
        return None if self.library_ms is None else "madeBLAS 1.0"

    def sample(self, executable, l2, count):
        self.drawn_ms += 1
        slow_down = 1 + self.drift * self.drawn_ms
        if isinstance(executable, Exe):
            self.order.append("library")
            return (slow_down * self.library_ms * (1 + 0.002 * self.rng.standard_normal(count))).tolist()
        self.order.append(self._configuration_of[id(executable)][0])
        return [slow_down * sample for sample in super().sample(executable, l2, count)]


BEST = Configuration.of("fine", {"TILE": 16, "UNROLL": 4})
"""The fastest configuration of `made_recordings.valley`."""

HOOKS, KNOWN = ({field.name for field in fields(kind)} for kind in (Hooks, Knowledge))


class Run:
    """tune() over a recording, and what it reported on the way."""

    def __init__(self, recording, budget, *, bench=None, **options):
        device, self.kernel, problem = replay(recording)
        self.space = self.kernel.space(problem, device.model.limits)
        self.bench = bench or device.bench(self.kernel, problem, seed=0)
        self.progress = []
        self.result = None
        hooks, knowledge = ({name: options.pop(name) for name in kind & options.keys()} for kind in (HOOKS, KNOWN))
        options |= {"seed": 0, "hooks": Hooks(**{"on_trial": self.progress.append, **hooks})}
        options |= {"knowledge": Knowledge(**knowledge)}
        self.tune = lambda: tune(self.bench, self.kernel, self.space, budget, **options)

    def go(self):
        self.result = self.tune()
        return self

    @property
    def trials(self):
        return [p.trial for p in self.progress]
