"""The single times behind a trial's median, and their replacement once they have been pruned."""

from __future__ import annotations

from tilewright.service.store import models
from tilewright.tuner.loop.statistics import Interval, median_interval


def kept_samples(row: models.Trial) -> list[float]:
    """The single times, in ms, behind the time that ranks; empty where they are not kept."""
    return (row.cold_samples_ms if row.ranking_l2 == "cold" else row.warm_samples_ms) or []


def ranking_samples(row: models.Trial) -> list[float]:
    """The single times, in ms, behind the time that ranks; that time alone where they are not kept."""
    return kept_samples(row) or ([] if row.time_ms is None else [row.time_ms])


def ranking_interval(row: models.Trial) -> Interval:
    """95 % of the time that ranks, in ms, the same before and after pruning; the row must have been measured."""
    if row.ci_low_ms is not None and row.ci_high_ms is not None:
        return Interval(row.ci_low_ms, row.ci_high_ms)
    return median_interval(ranking_samples(row))
