"""The calls about results, demand, attention and comparisons, answered from the database."""

from __future__ import annotations

from typing import Unpack

from tilewright.service.operations.answers import Page
from tilewright.service.operations.best import results, retractions
from tilewright.service.operations.best.results import ResultAnswer, WhichResults
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.requests import DemandJobs
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views import attention
from tilewright.service.operations.views.attention import AttentionFilter, AttentionPage


class LocalResults:
    """The part of `LocalConnection` with these calls."""

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
        """The first page of requested problems that are not tuned yet."""
        with transaction() as session:
            return demand.demand(session, kernel=kernel, device_model=device_model, limit=limit)

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the most requested problems."""
        with transaction() as session:
            return demand.tune_top(session, request, top=top, kernel=kernel, device_model=device_model)

    def attention(self, chosen: AttentionFilter, *, limit: int = 50) -> AttentionPage:
        """The first page of what needs attention."""
        with transaction() as session:
            return attention.attention(session, chosen, limit=limit)

    def tune_attention(self, request: DemandJobs, chosen: AttentionFilter, *, top: int) -> list[TunedDemand]:
        """The jobs for the most worthwhile of it."""
        with transaction() as session:
            return attention.tune_attention(session, request, chosen, top=top)

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of a schedule's comparisons."""
        with transaction() as session:
            return staleness_comparisons.comparisons(session, schedule_id, verdict=verdict, limit=limit)
