"""What the commands about results, demand and comparisons ask for, and the database's answers to it."""

from __future__ import annotations

from typing import Protocol, Unpack

from tilewright.service.operations.answers import Page
from tilewright.service.operations.best import results, retractions
from tilewright.service.operations.best.results import ResultAnswer, WhichResults
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.requests import DemandJobs
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.transaction import transaction


class AsksForResults(Protocol):
    """Part of what a connection does."""

    def results(self, **which: Unpack[WhichResults]) -> Page[ResultAnswer]:
        """The first page of results, newest first."""

    def retract(self, result_id: int, reason: str) -> ResultAnswer:
        """The retracted result."""

    def demand(
        self, *, kernel: str | None = None, device_model: str | None = None, limit: int = 50
    ) -> Page[DemandAnswer]:
        """The first page of what was asked for and is not known."""

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the top of demand."""

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of what a schedule's jobs came to."""


class LocalResults:
    """The same from the database; each call is one transaction."""

    def results(self, **which: Unpack[WhichResults]) -> Page[ResultAnswer]:
        """The first page of results, newest first."""
        with transaction() as session:
            return results.results(session, **which)

    def retract(self, result_id: int, reason: str) -> ResultAnswer:
        """The retracted result."""
        with transaction() as session:
            return retractions.retract(session, result_id, reason)

    def demand(
        self, *, kernel: str | None = None, device_model: str | None = None, limit: int = 50
    ) -> Page[DemandAnswer]:
        """The first page of what was asked for and is not known."""
        with transaction() as session:
            return demand.demand(session, kernel=kernel, device_model=device_model, limit=limit)

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the top of demand."""
        with transaction() as session:
            return demand.tune_top(session, request, top=top, kernel=kernel, device_model=device_model)

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of what a schedule's jobs came to."""
        with transaction() as session:
            return staleness_comparisons.comparisons(session, schedule_id, verdict=verdict, limit=limit)
