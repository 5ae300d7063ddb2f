from __future__ import annotations

import pytest

from tilewright.service.client import ApiProblemError
from tilewright.service.operations.requests import BudgetRequest, ScheduleChanges, ScheduleRequest

NIGHTLY = ScheduleRequest(
    name="nightly",
    cron="0 30 2 * * *",
    problems=[{"kernel": "gemm", "shape": {"m": 8, "n": 8, "k": 8}}],
    budget=BudgetRequest(trials=3),
)


def test_the_life_of_a_schedule(client, registered):
    made = client.create_schedule(NIGHTLY)
    assert (made.name, made.device_model) == ("nightly", registered)
    assert client.create_schedule(NIGHTLY) == made
    assert client.schedules() == [made]
    assert client.set_enabled(made.id, enabled=False).next_fires == []
    (job,) = client.run_now(made.id)
    assert client.schedule(made.id).last_jobs == [job.id]
    assert client.set_enabled(made.id, enabled=True).next_fires == made.next_fires
    edited = client.edit_schedule(made.id, ScheduleChanges(budget=BudgetRequest(trials=4)))
    assert (edited.budget["trials"], edited.problems, edited.cron) == (4, made.problems, made.cron)
    client.delete_schedule(made.id)
    assert client.schedules() == []
    with pytest.raises(ApiProblemError, match="schedule"):
        client.run_now(made.id)
