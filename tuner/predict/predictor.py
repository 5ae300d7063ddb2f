"""The configuration that should be fastest for a problem that was never tuned, from the trials of problems that were.

Candidates are the fastest configurations of the nearest tuned shapes, then what differs from the best of them in one
parameter, over and over. A function of shape, launch and parameters, fitted to all trials, says what time each would
take (`predict_model`, `predict_features`). How much slower than the best such a choice is, is found on each tuned shape
as if it had not been tuned (leave one shape out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.library.names import without_algorithm
from tilewright.tuner.predict.features import Features, RegisterEstimate, sizes_of, work_of
from tilewright.tuner.predict.leads import Leads, mean_near
from tilewright.tuner.predict.library import Left, LibraryFit, LibraryTime, LibraryTimes
from tilewright.tuner.predict.model import CENTRES, Smooth, one_thread
from tilewright.tuner.predict.record import Prediction, Record, enough
from tilewright.tuner.predict.tiles import Tiles

MOST_ROWS = 9000
"""Trials that are fitted to, shared out evenly among shapes."""

TRIALS_A_CENTRE, FEWEST_CENTRES = 8, 16
"""Trials to each centre of a term of the function: with more centres a fit takes longer and is no better."""

NEIGHBOURS, EACH = 16, 24
"""The nearest shapes, and how many of the fastest configurations of each are candidates; and of all the fastest of each
variant."""

MOST_ROUNDS, CHANGED, CHANGED_OF_VARIANT, CHANGED_WITHIN = 8, 4, 3, 0.3
"""Rounds of changes, and how many configurations each round changes: the best ones, and those of each variant, unless
their logarithm of time is farther behind than this. What was fastest elsewhere may not fit: of 300 candidates of an
H200's 38 did at (448, 184, 3328), and the one chosen takes 1.4 times as long as what a job found there."""

LOOKED_AT_FIRST = 32
"""Configurations of a round, those of the least expected times, that say which of the others are near enough."""

SLOW, BEYOND = 0.5, 0.3
"""A logarithm of time over the shape's best, and the part of any excess that counts: how slow matters little."""

CAUTION = 1.0
"""Standard deviations that are added to an expected time: between equals, the one that more is known of."""

Array = NDArray[np.float64]
Expected = tuple[float, float]
"""The expected value of a configuration with caution, which decides, and without."""


@dataclass(frozen=True)
class Fit:
    """The slow part of a fit: the function, the loss of leaving each shape out, two smaller functions."""

    model: Smooth
    losses: Array
    library: LibraryFit | None  # where the library was timed for enough shapes
    registers: RegisterEstimate | None  # where enough configurations were compiled


class Predictor:
    """Predictions for one kernel, dtype and set of options on one device model."""

    def __init__(
        self,
        kernel: Kernel,
        limits: Limits,
        records: Sequence[Record],
        fit: Fit | None = None,
        tiles: Tiles | None = None,
    ) -> None:
        """Fits to the records, or takes what `fit` holds of an earlier time with the same records.

        `tiles`: those of other predictors of the same kernel, dtype and options; to find them is most of a fit.
        Raises ValueError where there are fewer than FEWEST_SHAPES with a measured trial.
        """
        self._kernel = kernel
        self._records = [record for record in records if record.times_ms]
        # What failed for one problem may do so for another, and nobody verifies a prediction before it is used.
        self._failed = frozenset[Configuration]().union(*(record.failed for record in records))
        if not enough(len(self._records)):
            raise ValueError(f"{len(self._records)} tuned shapes are too few to predict from")
        registers = {c: count for record in reversed(self._records) for c, count in record.registers.items()}
        estimate = None if fit is None else fit.registers
        self._features = Features(kernel, limits, registers, estimate, shared_tiles=tiles)
        self._shapes = np.array([self._log_shape(record.problem) for record in self._records])
        # Beyond the tuned shapes the function goes on as it rose between them; no device does.
        self._highest_rate = min(math.log(r.best_ms / work_of(kernel, r.problem)) for r in self._records)
        with one_thread():
            self.fit = fit or self._fitted()
        self._model, self._losses, library = self.fit.model, self.fit.losses, self.fit.library
        self._leads = self._leads_of(self._losses)
        self._library = (
            None if library is None else LibraryTimes(self._features.shape, partial(work_of, kernel), library)
        )

    def _fitted(self) -> Fit:
        share = MOST_ROWS // len(self._records)
        samples = [record.sample(share) for record in self._records]
        rows = [self._features.kept_rows(r.problem, sample) for r, sample in zip(self._records, samples, strict=True)]
        values = [self._values(r, sample) for r, sample in zip(self._records, samples, strict=True)]
        groups = self._features.groups(self._records[0].problem, samples[0][0])
        most_centres = min(CENTRES, max(FEWEST_CENTRES, sum(map(len, samples)) // TRIALS_A_CENTRE))
        model = Smooth.fit(np.concatenate(rows), np.concatenate(values), most_centres=most_centres, groups=groups)
        held = [self._left_out(model, i, *one) for i, one in enumerate(zip(samples, rows, values, strict=True))]
        losses, off, deviations = (np.array(column) for column in zip(*held, strict=True))
        return Fit(model, losses, self._library_fit(losses, off, deviations), self._features.estimate)

    def _library_fit(self, losses: Array, off: Array, deviations: Array) -> LibraryFit | None:
        """The fit to the library's times; None where it was timed at too few shapes."""
        leads = self._leads_of(losses)
        timed = [(record.problem, record.library.time_ms) for record in self._records if record.library]
        if not enough(len(timed)):
            return None
        near = leads.near_left_out([self._distances(problem) for problem, _ in timed])
        left = Left(off[leads.places], deviations[leads.places], leads.chosen, near)
        return LibraryTimes.fit(self._features.shape, partial(work_of, self._kernel), timed, left).fitted

    def _leads_of(self, losses: Array) -> Leads:
        times = [(r.library.time_ms if r.library else math.nan, r.best_ms) for r in self._records]
        library_ms, best_ms = np.array(times).T
        return Leads.of(library_ms, best_ms, losses)

    def predict(
        self, problem: Problem, is_admitted: Callable[[Configuration], bool], *, is_rough: bool = False
    ) -> Prediction | None:
        """The candidate that the problem admits with the least expected time; None where it admits none.

        A configuration that failed for any tuned problem is no candidate. `is_rough`: in a tenth of the time, with any
        candidate in place of the best; whether there is one and the expected loss are the same.
        """
        is_open = self._open(is_admitted)
        distances = self._distances(problem)
        order = [int(i) for i in np.argsort(distances, kind="stable")]
        candidates = list(islice(filter(is_open, self._candidates(order)), 1 if is_rough else None))
        if not candidates:
            return None
        if is_rough:
            chosen = candidates[0]
            cautious = expected = float(self._model.values(self._features.rows(problem, candidates))[0])
        else:
            with one_thread():
                expectations = self._search(problem, is_open, candidates)
            chosen = min(expectations, key=lambda c: expectations[c][0])
            cautious, expected = expectations[chosen]
        caution, expected = cautious - expected, max(expected, self._highest_rate)
        tried = (self._records[i] for i in order if chosen in self._records[i].times_ms)
        work = work_of(self._kernel, problem)
        near = next(tried, self._records[order[0]])
        time_ms = math.exp(expected) * work
        library = self._library_near(problem, order, distances, time_ms, caution)
        return Prediction(
            chosen,
            time_ms,
            self._expected_loss(distances),
            near.problem,
            tuple(sorted({record.origin for record in self._records if record.origin is not None})),
            tuple(sorted({record.shipped for record in self._records if record.shipped is not None})),
            library,
            library is not None and library.time_ms < time_ms and not self._leads.may_gain(distances),
        )

    def _open(self, is_admitted: Callable[[Configuration], bool]) -> Callable[[Configuration], bool]:
        """Whether a configuration is admitted and failed for none of the tuned problems."""
        return lambda configuration: configuration not in self._failed and is_admitted(configuration)

    def ranked(self, problem: Problem, is_admitted: Callable[[Configuration], bool], count: int) -> list[Configuration]:
        """At most `count` of the candidates that `predict` looks at, those of the least expected times first."""
        is_open = self._open(is_admitted)
        order = [int(i) for i in np.argsort(self._distances(problem), kind="stable")]
        candidates = list(filter(is_open, self._candidates(order)))
        if not candidates:
            return []
        with one_thread():
            expectations = self._search(problem, is_open, candidates)
        return sorted(expectations, key=lambda one: expectations[one][0])[:count]

    def best_of(self, problem: Problem, configurations: Sequence[Configuration], count: int) -> list[Configuration]:
        """At most `count` of these, those of the least expected times first."""
        if not configurations:
            return []
        with one_thread():
            expected = self._expected(problem, configurations, math.inf)
        return sorted(expected, key=lambda one: expected[one][0])[:count]

    def nearest_first(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems by their distance to the nearest tuned one."""
        return sorted(problems, key=lambda problem: float(self._distances(problem).min()))

    def _library_near(
        self, problem: Problem, order: Sequence[int], distances: Array, time_ms: float, caution: float
    ) -> LibraryTime | None:
        """The library's expected time beside ours, with the call of the nearest problem where it was timed; or None."""
        if self._library is None:
            return None
        names = (record.library.name for i in order if (record := self._records[i]).library is not None)
        name, near = without_algorithm(next(names)), self._leads.near(distances)
        return self._library.expected(problem, name, time_ms, caution / CAUTION, near)

    def _search(
        self, problem: Problem, is_admitted: Callable[[Configuration], bool], candidates: Sequence[Configuration]
    ) -> dict[Configuration, Expected]:
        """Expected values of the candidates, and of changes to the best of them."""
        expectations: dict[Configuration, Expected] = {}
        changed: set[Configuration] = set()
        new, seen = list(candidates), set(candidates)
        for _ in range(MOST_ROUNDS):
            expectations |= self._expected(problem, new, min((e[0] for e in expectations.values()), default=math.inf))
            best = [c for c in _leaders(expectations) if c not in changed]
            changed.update(best)
            changes = dict.fromkeys(change for configuration in best for change in self._changes(configuration))
            new = [c for c in changes if c not in seen and is_admitted(c)]
            seen.update(changes)
            if not new:
                break
        return expectations

    def _expected(
        self, problem: Problem, configurations: Sequence[Configuration], least: float
    ) -> dict[Configuration, Expected]:
        """Expected values of the configurations, without those that no caution brings near `least`, the least so far.

        Deviations take longest, and caution only adds to a value.
        """
        basis = self._model.basis(self._features.rows(problem, configurations))
        values = self._model.valued(basis)
        order = np.argsort(values, kind="stable")
        expected: dict[Configuration, Expected] = {}
        for some in (order[:LOOKED_AT_FIRST], order[LOOKED_AT_FIRST:]):
            near = some[values[some] <= least + CHANGED_WITHIN]
            cautious = (values[near] + CAUTION * self._model.deviations(basis[near])).tolist()
            own = zip(cautious, values[near].tolist(), strict=True)
            expected |= zip((configurations[i] for i in near), own, strict=True)
            least = min([least, *cautious])
        return expected

    def _changes(self, configuration: Configuration) -> Iterator[Configuration]:
        """The configurations that differ in the value of one parameter."""
        values = {p.name: p.values for p in self._kernel.variant(configuration.variant).parameters}
        for place, (name, value) in enumerate(configuration.items):
            before, after = configuration.items[:place], configuration.items[place + 1 :]
            for other in values.get(name, ()):
                if other != value:
                    yield Configuration(configuration.variant, (*before, (name, other), *after))

    @property
    def losses(self) -> dict[Problem, float]:
        """Per tuned problem, the loss of the choice that the others predict for it: time over best, minus 1."""
        return {record.problem: float(loss) for record, loss in zip(self._records, self._losses, strict=True)}

    def _expected_loss(self, distances: Array) -> float:
        """The mean loss over tuned shapes, in which near ones count more."""
        return mean_near(self._losses, distances)

    def _distances(self, problem: Problem) -> Array:
        """The distance to each tuned shape: the sum over the axes of the logarithm to base 2 of the sizes' ratio."""
        return np.asarray(np.abs(self._shapes - self._log_shape(problem)).sum(axis=1))

    def _log_shape(self, problem: Problem) -> Array:
        return np.log2(np.array([*sizes_of(self._kernel, problem).values()], dtype=np.float64))

    def _candidates(self, order: Sequence[int]) -> list[Configuration]:
        """The few fastest of the nearest records and the fastest of each other, without duplicates."""
        counts = [EACH] * NEIGHBOURS + [0] * len(order)
        records = [(self._records[i], count) for i, count in zip(order, counts, strict=False)]
        return list(dict.fromkeys(c for record, count in records for c in (*record.ranked[:count], *record.leaders)))

    def _values(self, record: Record, sample: Sequence[Configuration]) -> Array:
        """The fitted values: the logarithm of time over work."""
        times_ms = np.array([record.times_ms[c] for c in sample])
        slow = np.maximum(np.log(times_ms / record.best_ms) - SLOW, 0.0)
        return np.asarray(np.log(times_ms / work_of(self._kernel, record.problem)) - (1 - BEYOND) * slow)

    def _left_out(
        self, model: Smooth, left_out: int, sample: Sequence[Configuration], rows: Array, values: Array
    ) -> tuple[float, float, float]:
        """Losses of choosing for each tuned shape by all others, among the candidates measured for it.

        Beside it how far its expected value was off, and the deviation of that. Where fewer than two candidates were
        measured, the choice is among all that were.
        """
        record = self._records[left_out]
        order = [int(i) for i in np.argsort(self._distances(record.problem), kind="stable") if i != left_out]
        candidates = set(self._candidates(order)) - self._failed
        open_to_choice = [i for i, c in enumerate(sample) if c in candidates]
        if len(open_to_choice) < 2:
            open_to_choice = list(range(len(sample)))
        expected, deviation = model.without(rows, values)
        chosen = min(open_to_choice, key=lambda i: expected[i] + CAUTION * deviation[i])
        loss = record.times_ms[sample[chosen]] / record.best_ms - 1
        return loss, float(expected[chosen] - values[chosen]), float(deviation[chosen])


def _leaders(expectations: Mapping[Configuration, Expected]) -> list[Configuration]:
    """The best few, then the best few of each variant that is not too far behind."""
    ranked = sorted(expectations, key=lambda c: expectations[c][0])
    limit = expectations[ranked[0]][0] + CHANGED_WITHIN
    by_variant: dict[str, list[Configuration]] = {}
    for configuration in ranked:
        if expectations[configuration][0] <= limit:
            by_variant.setdefault(configuration.variant, []).append(configuration)
    of_variants = (c for own in by_variant.values() for c in own[:CHANGED_OF_VARIANT])
    return list(dict.fromkeys([*ranked[:CHANGED], *of_variants]))
