"""How much each parameter of a variant matters, over all measured trials of it in a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Integer, cast, func, select, tuple_
from sqlalchemy.orm import Session

from tilewright.service.store import models

LEAST_TRIALS = 50
"""Measured trials below which nothing is said: five in the fastest tenth, as Optuna advises for this method."""

FASTEST_SHARE = 0.1

RESAMPLES = 100
"""Draws of the trials that say how uncertain the shares are."""

Counts = Sequence[tuple[int, int]]
"""For each value of a parameter: how many trials have it, and how many of the fastest tenth."""


@dataclass(frozen=True)
class ParameterCounts:
    """Each parameter's values, rising, over all trials of a variant; counts of the measured trials alone."""

    by_value: Mapping[str, Mapping[int, tuple[int, int]]]
    measured: int

    def values(self) -> dict[str, list[int]]:
        """The parameters that vary, with the values that occur, rising; those of failed trials too."""
        return {name: list(values) for name, values in self.by_value.items() if len(values) > 1}

    def shares(self) -> dict[str, float]:
        """Each parameter's share in deciding the fastest tenth, the largest first; they add up to 1.

        Empty for fewer trials than LEAST_TRIALS, and where no parameter decides anything.
        """
        if self.measured < LEAST_TRIALS:
            return {}
        counted = {name: [pair for pair in of.values() if pair[0]] for name, of in self.by_value.items()}
        found = {name: divergence(counts) for name, counts in counted.items() if len(counts) > 1}
        total = sum(found.values())
        return {n: found[n] / total for n in sorted(found, key=lambda n: -found[n])} if total > 0 else {}

    def uncertainty(self) -> Uncertainty | None:
        """The spread of the shares over resampled trials; None where there are no shares."""
        shares = self.shares()
        if not shares:
            return None
        chosen, again = np.random.default_rng(0), []
        for _ in range(RESAMPLES):
            drawn = {name: _drawn(list(of.values()), chosen) for name, of in self.by_value.items() if name in shares}
            again.append(ParameterCounts(drawn, self.measured).shares())
        first = next(iter(shares))
        return Uncertainty(
            {name: tuple(np.quantile([of.get(name, 0.0) for of in again], (0.05, 0.95)).tolist()) for name in shares},
            sum(next(iter(of), None) != first for of in again),
        )


@dataclass(frozen=True)
class Uncertainty:
    """The interval that holds nine of ten resampled shares of each parameter, and how often another one came first."""

    intervals: Mapping[str, tuple[float, float]]
    other_first: int


def _drawn(counts: Counts, chosen: np.random.Generator) -> dict[int, tuple[int, int]]:
    """Counts resampled with replacement, as many as there are, among the fastest trials and among the others."""
    table = np.array(counts)
    tops, rest = table[:, 1], table[:, 0] - table[:, 1]
    top, other = (chosen.multinomial(part.sum(), part / max(part.sum(), 1)) for part in (tops, rest))
    return {place: (int(t + o), int(t)) for place, (t, o) in enumerate(zip(top, other, strict=True))}


def divergence(counts: Counts) -> float:
    """The distance of the fastest trials' values from all: Pearson's divergence of smoothed frequencies.

    This is PED-ANOVA (Watanabe and others, IJCAI 2023) as `optuna.importance.PedAnovaImportanceEvaluator` computes it;
    tests compare the two. Optuna's needs each trial as an object, 11 s for 20,000, where counts are enough.
    """
    everywhere = _smoothed([count for count, _ in counts])
    at_the_top = _smoothed([top for _, top in counts])
    return sum(p * (q / p - 1) ** 2 for p, q in zip(everywhere, at_the_top, strict=True))


def _smoothed(counts: Sequence[int]) -> list[float]:
    """The frequencies with one more observation spread over all values, so that no frequency is 0."""
    kernels = 1 + sum(count > 0 for count in counts)
    total, rest = sum(counts), 1 / kernels
    own = len(counts) * rest + 1
    return [(total * rest / own + count / own + 1 / len(counts)) / (total + 1) for count in counts]


def parameter_counts(session: Session, study_id: int, variant: str) -> ParameterCounts:
    """The parameters' values over all trials of the variant in the study."""
    names = parameter_names(session, study_id, variant)
    if not names:
        return ParameterCounts({}, 0)
    trial = models.Trial
    values = [cast(trial.configuration[name].astext, Integer).label(f"value_{i}") for i, name in enumerate(names)]
    own = _of_variant(select(trial.time_ms, *values), study_id, variant).cte("own").prefix_with("MATERIALIZED")
    columns = list(own.c)[1:]
    cutoff = select(func.percentile_disc(FASTEST_SHARE).within_group(own.c.time_ms)).scalar_subquery()
    is_fast = own.c.time_ms <= cutoff
    measured = select(func.count(own.c.time_ms)).scalar_subquery()
    # A grouping for each parameter in one pass; unnesting the configurations would make a row for each of their values.
    sets = func.grouping_sets(*(tuple_(column) for column in columns))
    query = select(measured, func.count(own.c.time_ms), func.count().filter(is_fast), *columns).group_by(sets)
    found: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in names}
    rows = session.execute(query).all()
    for _, count, top, *of_sets in rows:
        for name, value in zip(names, of_sets, strict=True):
            if value is not None:  # the column of the row's set; none where trials lack the parameter
                found[name][value] = (count, top)
    return ParameterCounts({name: dict(sorted(of.items())) for name, of in found.items()}, rows[0][0] if rows else 0)


def parameter_names(session: Session, study_id: int, variant: str) -> list[str]:
    """The variant's parameters in the study, by name: those of the first and last trial of each state of its source."""
    trial = models.Trial
    ends = select(func.min(trial.number), func.max(trial.number)).group_by(trial.kernel_variant_id)
    numbers = [number for pair in session.execute(_of_variant(ends, study_id, variant)) for number in pair]
    query = select(trial.configuration).where(trial.study_id == study_id, trial.number.in_(numbers))
    return sorted({name for configuration in session.scalars(query) for name in configuration} - {"variant"})


def _of_variant(query: Any, study_id: int, variant: str) -> Any:
    """The query over trials narrowed to those of the variant in the study."""
    of = models.KernelVariant
    joined = query.join(of, of.id == models.Trial.kernel_variant_id)
    return joined.where(models.Trial.study_id == study_id, of.name == variant)
