"""Measurements of one family on one device: configurations at its sizes, each verified there, and the library."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
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
from tilewright.tuner.families.representative import inside
from tilewright.tuner.families.steps import ends, least_ms, most_ms
from tilewright.tuner.families.table import Measured
from tilewright.tuner.loop.measure import ContextLostError, MeasurementPlan
from tilewright.tuner.outcome import ALL_KINDS, KindsPart
from tilewright.tuner.runtime.any_size.ranges import is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice

T = TypeVar("T")

FEW_KINDS = KindsPart(0, 8)
"""The part of the inputs that verifies a search's winner: ranges are verified with all in the end."""

PLAN = MeasurementPlan(max_samples=13, side_samples=0, finalists=3, final_rounds=5, kinds=FEW_KINDS)
LIBRARY_SAMPLES = 7

RARE, TOGETHER = 17, 8
"""One kind in RARE is tried at a range's own sizes, beside the first; of so many ranges all are tried at one size, for
which they are drawn once."""

BEHIND = 1.05
"""So many times the best time at a size: what takes longer by its times at other sizes is not measured there."""

LEADING = 2
"""Configurations at each measured size whose tiles say where ranges may meet."""

LIBRARY_BEHIND = 1.1
"""So many times ours at a size: the library is not timed at sizes beside it where it takes longer."""


class Measurements:
    """The measurements of a family on one device."""

    def __init__(
        self,
        device: Device,
        kernel: Kernel,
        family: Family,
        seed: int,
        hooks: FamilyHooks,
        tile: Callable[[Configuration], int],
    ) -> None:
        """`tile`: the size of a configuration's tiles along the axis."""
        self.device, self.kernel, self.family, self.seed, self.hooks = device, kernel, family, seed, hooks
        self.measured, self._tile = Measured(), tile
        self._limits = device.model.limits
        self._place = TargetDevice(device.model.slug, self._limits)
        self._ahead: dict[tuple[Configuration, int], bool] = {}
        self._sound: dict[tuple[Configuration, int], bool] = {}

    @property
    def sizes(self) -> list[int]:
        """The measured sizes, in order."""
        return sorted({size for of_one in self.measured.times.values() for size in of_one})

    def sizes_in(self, span: Span) -> list[int]:
        """The measured sizes that the span serves."""
        return [size for size in self.sizes if span.low <= size <= span.high]

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
        key = configuration, size
        if key not in self._sound:
            self._sound[key] = self.is_sound(*key, size)
        return self._sound[key] and configuration not in self.measured.barred

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

    def measure(self, wanted: Mapping[int, Iterable[Configuration]], *, also_behind: bool = False) -> None:
        """These configurations at these sizes, as far as they are not measured there yet.

        The largest size first: a GPU keeps its inputs for the others. `also_behind`: what cannot win at a size by its
        times at others too.
        """
        left = {size: [one for one in some if self._is_missing(one, size)] for size, some in wanted.items()}
        ahead = list(dict.fromkeys(one for some in left.values() for one in some))
        known = frozenset(self.measured.compiled)
        for are_known in (True, False):  # what has to be compiled comes last
            for size, missing in sorted(left.items(), reverse=True):
                some = [one for one in missing if (one in known) is are_known]
                some = [one for one in some if also_behind or not self._has_lost(one, size)]
                if some:
                    self.on_bench(size, partial(self._measure_all, some, size, ahead, also_behind=also_behind))
                    ahead = []

    def compile_ahead(self, found: Iterable[Sequence[Configuration]]) -> list[Sequence[Configuration]]:
        """What is found, each part of which is compiled while the next is looked for."""

        def run(bench: Bench) -> list[Sequence[Configuration]]:
            parts = []
            for some in found:
                bench.compile_ahead(some)
                parts.append(some)
            return parts

        return self.on_bench(self.family.high, run)

    def _is_missing(self, configuration: Configuration, size: int) -> bool:
        is_known = size in self.measured.times.get(configuration, {}) or (configuration, size) in self.measured.failed
        return not is_known and self.fits(configuration, size)

    def expected(self, configuration: Configuration, between: Sequence[int], doubt: float) -> dict[int, float]:
        """Its times at the measured sizes and at those between, as is to be expected where it was not measured.

        At measured sizes `doubt` times that; between them it is everyone's.
        """
        times, measured = self.measured.times[configuration], self.sizes
        missing = [size for size in measured if self._is_missing(configuration, size)]
        served = times.keys() | missing
        # What it takes of the device grows with the size.
        inside = [size for size in between if measured[bisect_left(measured, size)] in served]
        found = most_ms(times, self._tile(configuration), [*missing, *inside])
        return times | found | {size: doubt * found[size] for size in missing}

    def ends(self) -> list[int]:
        """Sizes at which ranges may meet, in order.

        Between two measured sizes these are where a tile of their LEADING configurations ends, and the size after it.
        """
        found = {
            end + more
            for below, above in pairwise(self.sizes)
            for one in {*self.measured.ranked(below)[:LEADING], *self.measured.ranked(above)[:LEADING]}
            for end in ends(self._tile(one), below, above)
            for more in (0, 1)
        }
        return sorted(found)

    def _has_lost(self, configuration: Configuration, size: int) -> bool:
        best_ms = self.measured.best_ms(size)
        return best_ms is not None and self._least_ms(configuration, size) > BEHIND * best_ms

    def _least_ms(self, configuration: Configuration, size: int) -> float:
        return least_ms(self.measured.times.get(configuration, {}), self._tile(configuration), size)

    def _measure_all(
        self,
        some: Sequence[Configuration],
        size: int,
        ahead: Sequence[Configuration],
        bench: Bench,
        *,
        also_behind: bool,
    ) -> None:
        """Measures them on one bench; `ahead`: configurations of later sizes to compile, as code suits all sizes."""
        l2 = self.kernel.l2_of(self.family.exact(size))
        bench.compile_ahead([*some, *ahead])
        # The most promising first: the others are raced against it.
        for one in sorted(some, key=lambda one: self._least_ms(one, size) or math.inf):
            if self._is_missing(one, size) and (also_behind or not self._has_lost(one, size)):
                self.go_on()
                self.note(one, size, bench.evaluate(one, l2, PLAN, self.measured.best_ms(size)).time_ms)

    def time_library(self, first: Iterable[int]) -> None:
        """Times the library at these sizes, and beside those at which it was not far behind."""
        for size in first:
            if size not in self.measured.library_ms:
                self.on_bench(size, partial(self._time_library, size))
        for size in self.sizes:
            if size not in self.measured.library_ms and self._is_library_near(size):
                self.on_bench(size, partial(self._time_library, size))

    def _is_library_near(self, size: int) -> bool:
        """Whether it was not far behind at one of the next sizes at which it was timed."""
        known = sorted(self.measured.library_ms)
        place = bisect_left(known, size)
        best = {one: self.measured.best_ms(one) for one in known[max(0, place - 1) : place + 1]}
        return any(ms is None or self.measured.library_ms[one] < LIBRARY_BEHIND * ms for one, ms in best.items())

    def _time_library(self, size: int, bench: Bench) -> None:
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
            for size in self.sizes_in(span):
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
