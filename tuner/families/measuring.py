"""Measurements of one family on one device: configurations at its sizes, each verified there, and the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import TypeVar

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration, Constraint, Predicate, SearchSpace
from tilewright.kernels.variant import Variant
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.families.cover import Span
from tilewright.tuner.families.library import library_rounds, with_library
from tilewright.tuner.families.limits import FamilyHooks, FamilyStoppedError
from tilewright.tuner.families.representative import inside, middle
from tilewright.tuner.families.table import Measured
from tilewright.tuner.loop.measure import ContextLostError, MeasurementPlan
from tilewright.tuner.outcome import ALL_KINDS, KindsPart
from tilewright.tuner.runtime.any_size.ranges import is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice

T = TypeVar("T")

FEW_KINDS = KindsPart(0, 8)
"""The part of the inputs that verifies a search's winner: ranges are verified with all in the end."""

PLAN = MeasurementPlan(finalists=3, final_rounds=5, kinds=FEW_KINDS)
LIBRARY_SAMPLES = 7

RARE, TOGETHER = 17, 8
"""One kind in RARE is tried at a range's own sizes, beside the first; of so many ranges all are tried at one size, for
which they are drawn once."""

HALVINGS = 2
"""Sizes at which two ranges that meet are measured, to find where."""


class Measurements:
    """The measurements of a family on one device."""

    def __init__(self, device: Device, kernel: Kernel, family: Family, seed: int, hooks: FamilyHooks) -> None:
        self.device, self.kernel, self.family, self.seed, self.hooks = device, kernel, family, seed, hooks
        self.measured = Measured()
        self._limits = device.model.limits
        self._place = TargetDevice(device.model.slug, self._limits)
        self._met: dict[tuple[Configuration, Configuration, int, int], int] = {}
        self._ahead: dict[tuple[Configuration, int], bool] = {}

    @property
    def sizes(self) -> list[int]:
        """The measured sizes, in order."""
        return sorted({size for of_one in self.measured.times.values() for size in of_one})

    def space(self, problem: Problem) -> SearchSpace:
        """The space of one size; if rows must not depend on each other, only what guarantees that."""
        space = self.kernel.space(problem, self._limits)
        if not self.family.batch_invariant:
            return space
        spaces = []
        for one in space.spaces:
            same = Constraint("sums do not depend on other rows", _asked_of(self.kernel.variant(one.variant)))
            spaces.append(replace(one, constraints=(*one.constraints, same)))
        return SearchSpace(tuple(spaces), problem, self._limits)

    def fits(self, configuration: Configuration, size: int) -> bool:
        """Whether it may serve that size, and was never wrong."""
        return configuration not in self.measured.barred and self.is_sound(configuration, size, size)

    def is_sound(self, configuration: Configuration, low: int, high: int) -> bool:
        """Whether it may serve all these sizes."""
        return is_sound_within(self.kernel, self.family, self._place, Choice(configuration, "table"), low, high)

    def go_on(self) -> None:
        """Raises FamilyStoppedError where the tuning was stopped."""
        if self.hooks.should_stop():
            raise FamilyStoppedError(str(self.family))

    def on_bench(self, size: int, work: Callable[[Bench], T]) -> T:
        """The result of `work` on a bench of that size; it is repeated after a configuration broke the context."""
        while True:
            self.go_on()
            bench = self.device.bench(self.kernel, self.family.at(size), self.seed)
            try:
                return work(bench)
            except ContextLostError as lost:
                self.measured.barred.add(lost.configuration)
            finally:
                bench.close()

    def note(self, configuration: Configuration, size: int, time_ms: float | None) -> None:
        """Notes one evaluation, without a time where it failed."""
        self.measured.note(configuration, size, time_ms)
        self.hooks.on_trial(self.measured.trials)

    def measure(self, wanted: Mapping[int, Iterable[Configuration]]) -> None:
        """Measures these configurations and the library at these sizes, where that has not been done."""
        left = {size: [one for one in some if self._is_missing(one, size)] for size, some in wanted.items()}
        ahead = list(dict.fromkeys(one for some in left.values() for one in some))
        for size, some in left.items():
            if some or size not in self.measured.library_ms:
                self.on_bench(size, partial(self._measure_all, some, size, ahead))
                ahead = []

    def _is_missing(self, configuration: Configuration, size: int) -> bool:
        return size not in self.measured.times.get(configuration, {}) and self.fits(configuration, size)

    def _measure_all(
        self, some: Sequence[Configuration], size: int, ahead: Sequence[Configuration], bench: Bench
    ) -> None:
        """Measures them on one bench; `ahead`: configurations of later sizes to compile, as code suits all sizes."""
        l2 = self.kernel.l2_of(self.family.exact(size))
        bench.compile_ahead(ahead)
        for one in some:
            if self._is_missing(one, size):
                self.go_on()
                self.note(one, size, bench.evaluate(one, l2, PLAN, self.measured.best_ms(size)).time_ms)
        if size not in self.measured.library_ms:
            self._time_library(bench, size)

    def _time_library(self, bench: Bench, size: int) -> None:
        try:
            library = bench.library()
            if library is not None:
                self.measured.library = bench.library_name()
                l2 = self.kernel.l2_of(self.family.exact(size))
                samples = sorted(bench.sample(library, l2, LIBRARY_SAMPLES))
                self.measured.library_ms[size] = samples[LIBRARY_SAMPLES // 2]
        except TrialFailure as failure:
            self.hooks.say(f"{self.family.axis}={size}: the library's call failed: {failure.outcome}")

    def with_library(self, spans: Sequence[Span]) -> list[Span]:
        """The spans, cut where the library's call serves a part; not where rows must not depend on their number."""
        if self.family.batch_invariant:
            return list(spans)
        for span in spans:
            for size in (one for one in self.sizes if span.low <= one <= span.high):
                self._compare(span.configuration, size)
        ahead, measured = {key for key, is_ahead in self._ahead.items() if is_ahead}, self.measured
        return with_library(spans, measured.times, measured.library_ms | measured.own_choice_ms, ahead)

    def _compare(self, configuration: Configuration, size: int) -> None:
        """Plays rounds of the library's own choice and the configuration, where the library's fastest call is ahead."""
        ours_ms, library_ms = self.measured.times[configuration].get(size), self.measured.library_ms.get(size)
        is_ahead = ours_ms is not None and library_ms is not None and library_ms < ours_ms
        if is_ahead and (configuration, size) not in self._ahead:
            beside = partial(self._rounds_beside, configuration, size)
            self._ahead[configuration, size] = self.on_bench(size, beside)

    def _rounds_beside(self, configuration: Configuration, size: int, bench: Bench) -> bool:
        try:
            ours, l2 = bench.compile(configuration), self.kernel.l2_of(self.family.exact(size))
            found = library_rounds(bench, ours, l2)
            if found is None:
                return False
            self.measured.own_choice_ms[size], is_ahead = found
            self.measured.own_choice = bench.library_name(at_any_size=True)
        except TrialFailure as failure:
            self.hooks.say(f"{self.family.axis}={size}: the library's call failed: {failure.outcome}")
            if failure.sticky:
                raise ContextLostError(configuration, None) from failure
            return False
        return is_ahead

    def met(self, one: Span, other: Span) -> int:
        """The last size that the first of two neighbouring ranges serves; beyond it the other is faster."""
        below = max(size for size in self.sizes if size <= one.high)
        above = min(size for size in self.sizes if size > one.high)
        key = (one.configuration, other.configuration, below, above)
        if key not in self._met:
            self._met[key] = self._last_of(*key)
        return self._met[key]

    def _last_of(self, one: Configuration, other: Configuration, below: int, above: int) -> int:
        for _ in range(HALVINGS):
            size = middle(below, above)
            if size is None:
                break
            first_ms, second_ms = self.on_bench(size, partial(self._times, (one, other), size))
            below, above = (size, above) if first_ms <= second_ms else (below, size)
        return below

    def _times(self, some: Sequence[Configuration], size: int, bench: Bench) -> list[float]:
        """The configurations' times at a size that no range ends at, infinite where one failed."""
        times = []
        bench.compile_ahead(some)
        for one in some:
            found = bench.evaluate(one, self.kernel.l2_of(self.family.exact(size)), PLAN).time_ms
            times.append(float("inf") if found is None else found)
            self.measured.trials += 1
        return times

    def verified(self, spans: Sequence[Span]) -> tuple[dict[int, list[int]], set[Configuration]]:
        """The sizes at which each range was verified, and the configurations that were wrong.

        Each kind of inputs at one size for several ranges, as the code is the same at all; a few at a range's own.
        """
        wanted: dict[int, list[tuple[Configuration, KindsPart]]] = {}
        verified: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            verified[number] = inside(span.low, span.high, self.seed)
            for place, size in enumerate(verified[number]):
                wanted.setdefault(size, []).append((span.configuration, KindsPart((number + place) % RARE, RARE)))
        for some in (spans[i : i + TOGETHER] for i in range(0, len(spans), TOGETHER)):
            common = isqrt(some[0].low * some[-1].high)
            for span in some:
                size = common if self.fits(span.configuration, common) else span.low
                wanted.setdefault(size, []).append((span.configuration, ALL_KINDS))
        fallen = {span.configuration for span in spans if not self.is_sound(span.configuration, span.low, span.high)}
        for size, together in sorted(wanted.items()):
            left = [one for one in dict.fromkeys(together) if one[0] not in fallen]
            fallen |= self.on_bench(size, partial(self._wrong_ones, left))
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


def _asked_of(variant: Variant) -> Predicate:
    return lambda c, p, _d: variant.is_batch_invariant(c, p)
