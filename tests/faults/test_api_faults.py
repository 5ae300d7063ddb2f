"""The API killed while a job runs and a reader follows it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from fleet import free_port
from recovery import Recovery

from tilewright.service.client import Client
from tilewright.service.operations.requests import BudgetRequest, JobRequest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def test_a_killed_api_loses_no_job_and_its_readers_miss_no_event(working, gate):
    fault = Recovery(
        "API killed (kill -9), and started again two trials later",
        "jobs go on; a reader resumes after the last event that it saw; a repeated request is the same job",
        "first event that the reader gets from the new API",
    )
    port = free_port()
    api = working.start_api(port)
    heard = []

    def follow(job_id):
        with Client(f"http://127.0.0.1:{port}") as reader:
            heard.extend((datetime.now(UTC), event) for event in reader.events(job_id, reconnects=240))

    with Client(f"http://127.0.0.1:{port}") as client:
        working.until(client.is_ready)
        request = JobRequest(
            kernel="gemm", shape=gate.shape, variants=["naive"], sampler="random", budget=BudgetRequest(trials=12)
        )
        job, is_new = client.request_job(request, idempotency_key="once")
        assert is_new
        gate.allow(3)
        following = threading.Thread(target=follow, args=(job.id,))
        following.start()
        working.until(lambda: len(heard) >= 2)
        fault.strikes()
        api.kill()
        api.wait()
        before = working.job(job.id).trials_done
        gate.open()
        working.wait_for_trials(job.id, before + 2)  # nobody answers, the job goes on
        working.start_api(port)
        working.until(client.is_ready)
        assert client.request_job(request, idempotency_key="once") == (client.job(job.id), False)
        following.join(working.patience_s)
        assert not following.is_alive()
        working.assert_finished(job.id, 12, {1})
        numbers = [event.data["number"] for _, event in heard if event.event == "trial"]
        assert numbers == list(range(12))
        assert heard[-1][1].data["state"] == "done"
    working.assert_nothing_lost_or_doubled(job.id)
    fault.is_over(min(at for at, _ in heard if at > fault.struck_at))
