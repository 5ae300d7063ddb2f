"""The client's calls about results, demand, attention and the comparisons of schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar, Unpack
from urllib.parse import urlencode

import httpx
from pydantic import BaseModel

from tilewright.service.operations.answers import Page
from tilewright.service.operations.best.results import ResultAnswer, WhichResults
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.requests import DemandJobs, RetractionRequest
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.views.attention import AttentionFilter, AttentionPage

T = TypeVar("T", bound=BaseModel)

JSON = {"Content-Type": "application/json"}


class ResultCalls(ABC):
    """The part of `Client` with these calls; `Client` does the sending."""

    def results(self, **which: Unpack[WhichResults]) -> Page[ResultAnswer]:
        """The first page of results, newest first."""
        return self._get(Page[ResultAnswer], f"/v1/results?{_query(**which)}")

    def retract(self, result_id: int, reason: str) -> ResultAnswer:
        """The retracted result; sent again, the same."""
        body = RetractionRequest(reason=reason).model_dump_json()
        response = self._send("POST", f"/v1/results/{result_id}/retract", headers=JSON, content=body)
        return self._read(ResultAnswer, response.content)

    def demand(
        self, *, kernel: str | None = None, device_model: str | None = None, limit: int = 50
    ) -> Page[DemandAnswer]:
        """The first page of requested problems that are not tuned yet, the most requested first."""
        which = _query(kernel=kernel, device_model=device_model, limit=limit)
        return self._get(Page[DemandAnswer], f"/v1/demand?{which}")

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the most requested problems; sent again, it joins those that are open."""
        which = _query(top=top, kernel=kernel, device_model=device_model)
        body = request.model_dump_json(exclude_none=True)
        response = self._send("POST", f"/v1/demand:tune?{which}", headers=JSON, content=body)
        return self._read(Page[TunedDemand], response.content).items

    def attention(self, chosen: AttentionFilter | None = None, *, limit: int = 50) -> AttentionPage:
        """The first page of what needs attention, the most worthwhile first."""
        which = _query(**asdict(chosen or AttentionFilter()), limit=limit)
        return self._get(AttentionPage, f"/v1/attention?{which}")

    def tune_attention(self, request: DemandJobs, chosen: AttentionFilter, *, top: int) -> list[TunedDemand]:
        """The jobs for the most worthwhile that a worker serves; sent again, it joins those that are open."""
        which = _query(top=top, **asdict(chosen))
        body = request.model_dump_json(exclude_none=True)
        response = self._send("POST", f"/v1/attention:tune?{which}", headers=JSON, content=body)
        return self._read(Page[TunedDemand], response.content).items

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of a schedule's comparisons, newest first."""
        which = _query(verdict=verdict, limit=limit)
        return self._get(Page[ComparisonAnswer], f"/v1/schedules/{schedule_id}/comparisons?{which}")

    @abstractmethod
    def _get(self, kind: type[T], path: str) -> T: ...

    @abstractmethod
    def _send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: str | None = None,
        pauses_s: Sequence[float | None] = (0.2, 0.8, None),
    ) -> httpx.Response: ...

    @abstractmethod
    def _read(self, kind: type[T], body: bytes) -> T: ...


def _query(**which: str | float | None) -> str:
    """The query string; None is left out, flags are `true` and `false`."""
    given = {name: value for name, value in which.items() if value is not None}
    return urlencode({name: str(v).lower() if isinstance(v, bool) else v for name, v in given.items()})
