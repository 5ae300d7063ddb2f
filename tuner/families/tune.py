"""Tunes a family: searches at a few sizes, measures what leads at all of them, covers the axis with few of these."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, Predicate, SearchSpace
from tilewright.kernels.variant import Variant
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.families.cover import MOST_RANGES, NoCoverError, Span, cover
from tilewright.tuner.families.limits import NO_HOOKS, FamilyBudget, FamilyHooks, FamilyStoppedError
from tilewright.tuner.families.representative import MOST, behind, between, inside, spread
from tilewright.tuner.families.table import Measured, Table
from tilewright.tuner.library.names import without_algorithm
from tilewright.tuner.loop.measure import ContextLostError, MeasurementPlan
from tilewright.tuner.loop.study import Budget, Hooks, Knowledge, Progress, Trial, TuneResult
from tilewright.tuner.loop.tune import tune
from tilewright.tuner.outcome import KindsPart
from tilewright.tuner.runtime.any_size.ranges import is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice

T = TypeVar("T")

LEADERS = 3
"""Configurations of each size that are measured at all sizes."""

MOST_LEADERS = 24
RANDOM_SIZES = 2
"""Sizes inside each range, beside its ends, at which its configuration is verified."""

MOST_COVERS = 8
"""Covers that are verified until one stands: each that falls has lost a configuration."""

FEW_KINDS = KindsPart(0, 8)
"""Of inputs that a search's winner is verified with: ranges are verified with all of them in the end."""

SEARCH_PLAN = MeasurementPlan(finalists=LEADERS, final_rounds=5, kinds=FEW_KINDS)
LIBRARY_SAMPLES = 7


def tune_family(
    device: Device,
    kernel: Kernel,
    family: Family,
    budget: FamilyBudget,
    *,
    seed: int,
    starts: Sequence[Configuration] = (),
    barred: Iterable[Configuration] = (),
    hooks: FamilyHooks = NO_HOOKS,
) -> Table:
    """The table of the family on that device. `starts` are tried at every size, those that are barred at none.

    Each configuration is compiled once for all sizes. Raises TunerError where some size has no right configuration,
    FamilyStoppedError.
    """
    job = _Job(device, kernel, family, seed, hooks)
    job.measured.barred.update(barred)
    started = time.monotonic()
    sizes = spread(family.low, family.high, budget.sizes)
    for size in sizes:
        job.search(size, budget, starts)
    job.measure(sizes)
    while len(sizes) < MOST:
        more = between(job.best(sizes), MOST - len(sizes))
        if not more:
            break
        job.measure(more)
        sizes = sorted({*sizes, *more})
    job.measure(behind(job.best(sizes)))
    spans, verified = job.settled()
    measured = job.measured
    served = {size for of_one in measured.times.values() for size in of_one}
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
    )


class _Job:
    """One family on one device, while it is tuned."""

    def __init__(self, device: Device, kernel: Kernel, family: Family, seed: int, hooks: FamilyHooks) -> None:
        self.device, self.kernel, self.family, self.seed, self.hooks = device, kernel, family, seed, hooks
        self.limits: Limits = device.model.limits
        self.place = TargetDevice(device.model.slug, self.limits)
        self.measured = Measured()

    def search(self, size: int, budget: FamilyBudget, starts: Sequence[Configuration]) -> None:
        """A search at one size, which begins with what led at the sizes before."""
        problem = self.family.at(size)
        space = self._space(problem)
        if not len(space):
            return
        known = [
            *starts,
            *(c for other in sorted(self._sizes(), reverse=True) for c in self.measured.ranked(other)[:2]),
        ]
        knowledge = Knowledge(starts=list(dict.fromkeys(c for c in known if c in space)))
        made: list[Trial] = []
        begun_s = time.monotonic()

        def heard(progress: Progress) -> None:
            made.append(progress.trial)
            self._note(progress.trial.configuration, size, progress.trial.evaluation.time_ms)

        too_fast = partial(roofline.too_fast, self.kernel, self.family.exact(size), self.device.model)
        hooks = Hooks(on_trial=heard, should_stop=self.hooks.should_stop, too_fast=too_fast)

        def run(bench: Bench) -> TuneResult:
            limits = Budget(budget.trials, budget.seconds, spent_trials=len(made), spent_s=time.monotonic() - begun_s)
            known = replace(knowledge, trials=tuple(made), barred=frozenset(self.measured.barred))
            return tune(
                bench, self.kernel, space, limits, seed=self.seed, knowledge=known, hooks=hooks, plan=SEARCH_PLAN
            )

        self._keep(size, self._on_bench(size, run))

    def _keep(self, size: int, result: TuneResult) -> None:
        """Records the search's result; raises FamilyStoppedError where it was stopped."""
        self._go_on()
        for finalist in result.finalists:
            self.measured.times.setdefault(finalist.configuration, {})[size] = finalist.time_ms
        self.measured.barred.update(dropped.configuration for dropped in result.dropped)
        if result.library is not None:
            self.measured.library_ms[size] = result.library.time_ms
            self.measured.library = without_algorithm(result.library.name)
        leader = self.measured.ranked(size)
        told = f"{self.measured.times[leader[0]][size] * 1e3:.1f} us, {leader[0]}" if leader else "nothing was right"
        self.hooks.say(f"{self.family.axis}={size}: {told}")

    def _on_bench(self, size: int, work: Callable[[Bench], T]) -> T:
        """The result of `work` on a bench of that size; it is repeated after a configuration broke the context."""
        while True:
            self._go_on()
            bench = self.device.bench(self.kernel, self.family.at(size), self.seed)
            try:
                return work(bench)
            except ContextLostError as lost:
                self.measured.barred.add(lost.configuration)
            finally:
                bench.close()

    def _go_on(self) -> None:
        if self.hooks.should_stop():
            raise FamilyStoppedError(str(self.family))

    def best(self, sizes: Sequence[int]) -> list[tuple[int, Configuration]]:
        """Those of the sizes at which something was right, each with the fastest configuration."""
        return [(size, ranked[0]) for size in sizes if (ranked := self.measured.ranked(size))]

    def measure(self, sizes: Sequence[int]) -> None:
        """The leaders of every size at these sizes, each verified there, and the library."""
        leaders = self._leaders()
        for size in sizes:
            self._on_bench(size, partial(self._measure_all, leaders, size))

    def _measure_all(self, leaders: Sequence[Configuration], size: int, bench: Bench) -> None:
        l2 = self.kernel.l2_of(self.family.exact(size))
        for one in leaders:
            if size not in self.measured.times.get(one, {}) and self._fits(one, size):
                self._go_on()
                self._note(one, size, bench.evaluate(one, l2, SEARCH_PLAN).time_ms)
        if size not in self.measured.library_ms:
            self._time_library(bench, size)

    def settled(self) -> tuple[list[Span], dict[int, list[int]]]:
        """A cover of the axis each of whose configurations was right at both ends of its range and between."""
        for _ in range(MOST_COVERS):
            try:
                most = 1 if self.family.batch_invariant else MOST_RANGES
                spans = cover(self.counted(), self.family.low, self.family.high, most)
            except NoCoverError as error:
                raise TunerError(f"{self.family}: {error}") from error
            verified, fallen = self._verified(spans)
            if not fallen:
                return spans, verified
            self.measured.barred.update(fallen)
        raise TunerError(f"{self.family}: no cover stood its verification in {MOST_COVERS} tries")

    def counted(self) -> dict[Configuration, dict[int, float]]:
        """The times that may be chosen from: of what was never wrong, and is sound at every size that it may serve."""
        return {
            configuration: dict(of_one)
            for configuration, of_one in self.measured.times.items()
            if configuration not in self.measured.barred and self._is_sound(configuration, *_ends(of_one))
        }

    def _verified(self, spans: Sequence[Span]) -> tuple[dict[int, list[int]], set[Configuration]]:
        """The sizes at which each range was verified, and the configurations that were wrong at one."""
        wanted: dict[int, list[tuple[Configuration, KindsPart]]] = {}
        verified: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            sizes = verified[number] = inside(span.low, span.high, RANDOM_SIZES, self.seed)
            for place, size in enumerate(sizes):  # each kind of inputs at one of the sizes: the code is the same
                wanted.setdefault(size, []).append((span.configuration, KindsPart(place, len(sizes))))
        fallen = {span.configuration for span in spans if not self._is_sound(span.configuration, span.low, span.high)}
        for size, some in sorted(wanted.items()):
            left = [one for one in some if one[0] not in fallen]
            fallen |= self._on_bench(size, partial(self._wrong_ones, left))
        return verified, fallen

    def _wrong_ones(self, some: Sequence[tuple[Configuration, KindsPart]], bench: Bench) -> set[Configuration]:
        return {one for one, kinds in some if not self._is_right(bench, one, kinds)}

    def _is_right(self, bench: Bench, configuration: Configuration, kinds: KindsPart) -> bool:
        if configuration in self.measured.barred:
            return False
        try:
            executable = bench.compile(configuration)
            each = bench.verify_each_kind(executable, kinds) or (bench.verify(executable),)
        except TrialFailure as failure:
            self.hooks.say(f"{configuration} failed its verification: {failure.outcome}")
            if failure.sticky:
                raise ContextLostError(configuration, None) from failure
            return False
        return all(one.is_right for one in each)

    def _time_library(self, bench: Bench, size: int) -> None:
        try:
            library = bench.library()
            if library is not None:
                self.measured.library = without_algorithm(bench.library_name() or "library")
                l2 = self.kernel.l2_of(self.family.exact(size))
                self.measured.library_ms[size] = sorted(bench.sample(library, l2, LIBRARY_SAMPLES))[
                    LIBRARY_SAMPLES // 2
                ]
        except TrialFailure as failure:
            self.hooks.say(f"{self.family.axis}={size}: the library's call failed: {failure.outcome}")

    def _note(self, configuration: Configuration, size: int, time_ms: float | None) -> None:
        self.measured.note(configuration, size, time_ms)
        self.hooks.on_trial(self.measured.trials)

    def _leaders(self) -> list[Configuration]:
        ranks: Iterable[Configuration] = (
            self.measured.ranked(size)[place]
            for place in range(LEADERS)
            for size in sorted(self._sizes())
            if len(self.measured.ranked(size)) > place
        )
        return list(dict.fromkeys(ranks))[:MOST_LEADERS]

    def _sizes(self) -> set[int]:
        return {size for of_one in self.measured.times.values() for size in of_one}

    def _fits(self, configuration: Configuration, size: int) -> bool:
        return configuration not in self.measured.barred and self._is_sound(configuration, size, size)

    def _is_sound(self, configuration: Configuration, low: int, high: int) -> bool:
        return is_sound_within(self.kernel, self.family, self.place, Choice(configuration, "table"), low, high)

    def _space(self, problem: Problem) -> SearchSpace:
        """The space of one size; of rows that must not depend on each other, what keeps to that."""
        space = self.kernel.space(problem, self.limits)
        if not self.family.batch_invariant:
            return space
        spaces = []
        for one in space.spaces:
            same = Constraint("sums do not depend on other rows", _asked_of(self.kernel.variant(one.variant)))
            spaces.append(replace(one, constraints=(*one.constraints, same)))
        return SearchSpace(tuple(spaces), problem, self.limits)


def _asked_of(variant: Variant) -> Predicate:
    return lambda c, p, _d: variant.is_batch_invariant(c, p)


def _ends(of_one: dict[int, float]) -> tuple[int, int]:
    return min(of_one), max(of_one)
