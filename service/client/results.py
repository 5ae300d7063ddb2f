"""The client's calls about results, tables, claims, demand, attention and the comparisons of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Unpack
from urllib.parse import quote

from tilewright.service.client.transport import Transport, with_query
from tilewright.service.operations.answers import Page
from tilewright.service.operations.best.results import ResultAnswer, WhichResults
from tilewright.service.operations.best.tables import TableAnswer
from tilewright.service.operations.claims.claims import ClaimAnswer
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.requests import ClaimRequest, DemandJobs, RetractionRequest
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.views.attention import AttentionFilter, AttentionPage


class ResultCalls(Transport):
    """The part of `Client` with these calls."""

    def table(
        self,
        kernel: str,
        device_model: str | None,
        shape: Mapping[str, int | str],
        dtype: str = "float32",
        options: Mapping[str, bool | str] | None = None,
    ) -> TableAnswer:
        """The table of a family, whose shape has a range in it such as `{"m": "1..8192", "n": 4096, "k": 4096}`."""
        path = with_query(
            f"/v1/kernels/{quote(kernel, safe='')}/table",
            device_model=device_model,
            shape=format_shape(shape),
            dtype=dtype,
            options=format_options(options) if options else None,
        )
        return self._get(TableAnswer, path)

    def results(self, **which: Unpack[WhichResults]) -> Page[ResultAnswer]:
        """The first page of results, newest first."""
        return self._get(Page[ResultAnswer], with_query("/v1/results", **which))

    def retract(self, result_id: int, reason: str) -> ResultAnswer:
        """The retracted result; sent again, the same."""
        return self._post(ResultAnswer, f"/v1/results/{result_id}/retract", RetractionRequest(reason=reason))

    def report_claim(self, request: ClaimRequest) -> ClaimAnswer:
        """The claim that a configuration gave wrong results; sent again, the same one."""
        return self._post(ClaimAnswer, "/v1/claims", request)

    def claims(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[ClaimAnswer]:
        """A page of claims, newest first."""
        return self._get(Page[ClaimAnswer], with_query("/v1/claims", state=state, limit=limit, cursor=cursor))

    def claim(self, claim_id: int) -> ClaimAnswer:
        """One claim, and what came of it."""
        return self._get(ClaimAnswer, f"/v1/claims/{claim_id}")

    def demand(
        self, *, kernel: str | None = None, device_model: str | None = None, limit: int = 50
    ) -> Page[DemandAnswer]:
        """The first page of requested problems that are not tuned yet, the most requested first."""
        path = with_query("/v1/demand", kernel=kernel, device_model=device_model, limit=limit)
        return self._get(Page[DemandAnswer], path)

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the most requested problems; sent again, it joins those that are open."""
        path = with_query("/v1/demand:tune", top=top, kernel=kernel, device_model=device_model)
        return self._post(Page[TunedDemand], path, request).items

    def attention(self, chosen: AttentionFilter | None = None, *, limit: int = 50) -> AttentionPage:
        """The first page of what needs attention, the most worthwhile first."""
        path = with_query("/v1/attention", **asdict(chosen or AttentionFilter()), limit=limit)
        return self._get(AttentionPage, path)

    def tune_attention(self, request: DemandJobs, chosen: AttentionFilter, *, top: int) -> list[TunedDemand]:
        """The jobs for the most worthwhile that a worker serves; sent again, it joins those that are open."""
        path = with_query("/v1/attention:tune", top=top, **asdict(chosen))
        return self._post(Page[TunedDemand], path, request).items

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of a schedule's comparisons, newest first."""
        path = with_query(f"/v1/schedules/{schedule_id}/comparisons", verdict=verdict, limit=limit)
        return self._get(Page[ComparisonAnswer], path)
