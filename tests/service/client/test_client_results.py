"""Results, demand and comparisons over HTTP, as the commands ask for them."""

from __future__ import annotations

import pytest

from tilewright.service.client.errors import ApiProblemError
from tilewright.service.operations.requests import BudgetRequest, DemandJobs, ScheduleRequest
from tilewright.service.operations.views.attention import AttentionFilter
from tilewright.service.operations.views.attention_kind import AttentionKind


def test_the_calls_reach_their_addresses(client):
    assert client.results(stale=True, improvable=False, kernel="gemm").items == []
    assert client.demand(kernel="gemm", limit=3).items == []
    assert client.tune_demand(DemandJobs(budget=BudgetRequest(trials=3)), top=2) == []
    stale = AttentionFilter(AttentionKind.STALE, kernel="gemm")
    assert (client.attention(stale, limit=3).items, client.attention().total) == ([], 0)
    assert client.tune_attention(DemandJobs(budget=BudgetRequest(trials=3)), stale, top=2) == []
    with pytest.raises(ApiProblemError) as refused:
        client.retract(999, "wrong")
    assert refused.value.status == 404
    with pytest.raises(ApiProblemError):
        client.comparisons(999, verdict="worse")
    with pytest.raises(ApiProblemError):
        client.create_schedule(ScheduleRequest(name="x", cron="0 0 3 * * *", target="stale"))
