"""Tunes a family: searches at a few sizes, measures what leads at more of them, covers the axis with few of these."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.families.cover import MOST_RANGES, NoCoverError, Span, Times, cover, serving
from tilewright.tuner.families.limits import NO_HOOKS, FamilyBudget, FamilyHooks
from tilewright.tuner.families.measuring import PLAN, Measurements
from tilewright.tuner.families.proposals import PROPOSED, Proposals
from tilewright.tuner.families.representative import MOST_EACH, between, spread
from tilewright.tuner.families.table import Table
from tilewright.tuner.loop.study import Budget, Hooks, Knowledge, Progress, Trial, TuneResult
from tilewright.tuner.loop.tune import tune
from tilewright.tuner.predict.record import Record

AROUND = ((1, 2), (2, 1))
"""Neighbours whose fastest configurations are measured at a size: their distance in sizes, and how many each."""

SHAPED = 3
"""Of those so many, beside the size's own, are measured with tiles that fit it."""

LEADERS, MOST_LEADERS = 3, 24
"""Configurations of each size, and of all, of which one has to serve all sizes."""

LOOKED_AT_EVERY, PROPOSED_FOR_MORE = 2, 8
"""Of the first sizes one in so many is looked at for configurations that records of other problems let expect, and how
many it gets; the others choose among those. To look takes a third of a second (H200's host)."""

MOST_ESTIMATES, DOUBT = 32, 0.01
"""Covers by times that are partly expected, until all that one rests on have been measured. Each lets what is not take
so much more than the one before: what a cover takes of it is the luckiest of many."""

NEAR = 1.05
"""What is nowhere within so many times the best serves no range, unless one has to serve all sizes."""

MOST_COVERS = 8
"""Covers that are verified until one stands: each that falls has lost a configuration."""


def tune_family(
    device: Device,
    kernel: Kernel,
    family: Family,
    budget: FamilyBudget,
    *,
    seed: int,
    starts: Sequence[Configuration] = (),
    records: Sequence[Record] = (),
    barred: Iterable[Configuration] = (),
    hooks: FamilyHooks = NO_HOOKS,
) -> Table:
    """The family's table on that device. `starts` are tried at every size, barred configurations at none.

    `records`: of other problems, from which configurations are predicted, beside those from what is measured here.
    Each configuration is compiled once for all sizes. Raises TunerError where some size has no right configuration,
    FamilyStoppedError.
    """
    started = time.monotonic()
    proposals = Proposals(kernel, family, device.model, records)
    measurements = Measurements(device, kernel, family, seed, hooks, proposals.tile)
    measurements.measured.barred.update(barred)
    job = _Job(measurements, proposals)
    sizes = first = spread(family.low, family.high, budget.sizes)
    if budget.seconds == 0:
        job.predicted(sizes, starts)
    for size in sizes[::-1] if budget.seconds != 0 else ():  # a GPU keeps the inputs of the largest for all others
        job.search(size, budget, starts)
    proposals.learn(measurements.measured)
    most = MOST_EACH * len(sizes)
    if family.batch_invariant:  # one configuration serves all sizes
        measurements.measure(dict.fromkeys(sizes, job.leaders()), also_behind=True)
        most = len(sizes)
    else:
        job.explore(sizes)
    while len(sizes) < most and (more := between(job.best_ms(), most - len(sizes))):
        job.explore(more)
        sizes = sorted({*sizes, *more})
    if not family.batch_invariant:
        proposals.learn(measurements.measured)
        job.explore(measurements.sizes)
    measurements.time_library(first[::-LOOKED_AT_EVERY])
    spans, verified = job.settled()
    measured = measurements.measured
    served = set(measurements.sizes)
    return Table(
        family,
        device.model.slug,
        device.environment,
        tuple(spans),
        job.counted(),
        {size: ms for size, ms in measured.library_ms.items() if size in served},
        measured.library,
        verified,
        measured.trials,
        len(measured.compiled),
        time.monotonic() - started,
        {size: ms for size, ms in measured.own_choice_ms.items() if size in served},
        measured.own_choice,
    )


class _Job:
    """One family on one device, while it is tuned."""

    def __init__(self, measurements: Measurements, proposals: Proposals) -> None:
        self._on, self._proposals = measurements, proposals
        self._family, self._measured = measurements.family, measurements.measured

    def search(self, size: int, budget: FamilyBudget, starts: Sequence[Configuration]) -> None:
        """Searches at one size, starting with the fastest of the sizes before."""
        on, kernel = self._on, self._on.kernel
        space = on.space(self._family.at(size))
        if not len(space):
            return
        led = (c for other in on.sizes for c in self._measured.ranked(other)[:2])
        self._proposals.learn(self._measured)
        known = [*starts, *self._proposals.at(size, on.fits), *led]
        knowledge = Knowledge(starts=list(dict.fromkeys(c for c in known if c in space)))
        made: list[Trial] = []
        begun_s = time.monotonic()

        def heard(progress: Progress) -> None:
            made.append(progress.trial)
            on.note(progress.trial.configuration, size, progress.trial.evaluation.time_ms)

        too_fast = partial(roofline.too_fast, kernel, self._family.exact(size), on.device.model)
        hooks = Hooks(on_trial=heard, should_stop=on.hooks.should_stop, too_fast=too_fast)

        def run(bench: Bench) -> TuneResult:
            limits = Budget(budget.trials, budget.seconds, spent_trials=len(made), spent_s=time.monotonic() - begun_s)
            known = replace(knowledge, trials=tuple(made), barred=frozenset(self._measured.barred))
            return tune(bench, kernel, space, limits, seed=on.seed, knowledge=known, hooks=hooks, plan=PLAN)

        self._keep(size, on.on_bench(size, run))

    def _keep(self, size: int, result: TuneResult) -> None:
        """Records the search's result; raises FamilyStoppedError where it was stopped."""
        self._on.go_on()
        for finalist in result.finalists:
            self._measured.times.setdefault(finalist.configuration, {})[size] = finalist.time_ms
        self._measured.barred.update(dropped.configuration for dropped in result.dropped)
        if result.library is not None:
            self._measured.library_ms[size], self._measured.library = result.library.time_ms, result.library.name
        self._say(size)

    def _say(self, size: int) -> None:
        leader = self._measured.ranked(size)
        told = f"{self._measured.times[leader[0]][size] * 1e3:.1f} us, {leader[0]}" if leader else "nothing was right"
        self._on.hooks.say(f"{self._family.axis}={size}: {told}")

    def predicted(self, sizes: Sequence[int], starts: Sequence[Configuration]) -> None:
        """Measures what is predicted for these sizes: for some of them of all, for the others of what these got."""
        looked_at, propose = sizes[::-LOOKED_AT_EVERY], partial(self._proposals.at, fits=self._on.fits)
        with ThreadPoolExecutor(1, "propose") as thread:  # beside the set-up of the device
            proposed = [thread.submit(propose, size, count=PROPOSED_FOR_MORE) for size in looked_at]
            found = self._on.compile_ahead(one.result() for one in proposed)
        known = list(dict.fromkeys(one for some in found for one in some))
        wanted = {size: [*starts, *self._proposals.best_of(size, known, self._on.fits)] for size in sizes}
        first = {size: [*starts, *some[:PROPOSED], *wanted[size]] for size, some in zip(looked_at, found, strict=True)}
        self._on.measure(first, also_behind=True)
        self._on.measure(wanted)

    def explore(self, sizes: Sequence[int]) -> None:
        """Measures what leads at the neighbours of these sizes, and that with tiles that fit; else the default."""
        wanted = {}
        for size in sizes:
            around, own = self.around(size), self._measured.ranked(size)[:1]
            wanted[size] = [*around, *self._proposals.shaped([*own, *around[:SHAPED]], size, self._on.fits)]
        self._on.measure(wanted)
        for size in sizes:
            if not self._measured.ranked(size):
                self._on.measure({size: self._on.kernel.first_configurations(self._on.space(self._family.at(size)))})
            self._say(size)

    def around(self, size: int) -> list[Configuration]:
        """The fastest configurations of the next sizes on both sides."""
        sizes = self._on.sizes
        below, above = [one for one in sizes if one < size][::-1], [one for one in sizes if one > size]
        found = (
            configuration
            for far, count in AROUND
            for side in (below, above)
            for neighbour in side[far - 1 : far]
            for configuration in self._measured.ranked(neighbour)[:count]
        )
        return list(dict.fromkeys(found))

    def leaders(self) -> list[Configuration]:
        """The fastest configurations of every size."""
        ranks = [self._measured.ranked(size)[:LEADERS] for size in self._on.sizes]
        return list(dict.fromkeys(c for some in zip_longest(*ranks) for c in some if c is not None))[:MOST_LEADERS]

    def best_ms(self) -> list[tuple[int, float]]:
        """The sizes at which something was right, each with the least time."""
        found = ((size, self._measured.best_ms(size)) for size in self._on.sizes)
        return [(size, time_ms) for size, time_ms in found if time_ms is not None]

    def settled(self) -> tuple[list[Span], dict[int, list[int]]]:
        """A cover of the axis by configurations that were right at both ends of their range and between."""
        family = self._family
        for _ in range(MOST_COVERS):
            spans = self._covered()
            self._on.time_library(())  # at sizes that the cover has added
            spans = self._on.with_library(spans)
            verified, fallen = self._on.verified(spans)
            if not fallen:
                return spans, verified
            self._measured.barred.update(fallen)
        raise TunerError(f"{family}: no cover stood its verification in {MOST_COVERS} tries")

    def _covered(self) -> list[Span]:
        """The cover by times of which all that it rests on are measured, or by these alone; may raise TunerError."""
        on, ends = self._on, self._on.ends()
        for number in range(MOST_ESTIMATES):
            times = {one: on.expected(one, ends, 1 + DOUBT * (number + 1)) for one in self.counted()}
            spans = self._cover(times)
            served = {size: serving(spans, size) for size in on.sizes}
            served |= {span.high: span.configuration for span in spans if not on.sizes_in(span)}
            missing = {size: [one] for size, one in served.items() if size not in self._measured.times[one]}
            if not missing:
                return spans
            on.measure(missing, also_behind=True)
        return self._cover(self.counted())

    def _cover(self, times: Times) -> list[Span]:
        family = self._family
        try:
            return cover(times, family.low, family.high, 1 if family.batch_invariant else MOST_RANGES)
        except NoCoverError as error:
            raise TunerError(f"{family}: {error}") from error

    def counted(self) -> dict[Configuration, dict[int, float]]:
        """The times that may be chosen from: of what was never wrong, and is sound at every size that it may serve."""
        best_ms = dict(self.best_ms())
        return {
            configuration: dict(of_one)
            for configuration, of_one in self._measured.times.items()
            if configuration not in self._measured.barred
            and (self._family.batch_invariant or any(ms < NEAR * best_ms[size] for size, ms in of_one.items()))
            and self._on.is_sound(configuration, min(of_one), max(of_one))
        }
