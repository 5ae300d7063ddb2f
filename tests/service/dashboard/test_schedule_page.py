"""The page of schedules: what is shown of them; the browser's tests press the buttons."""

import pytest

from tilewright.service.operations import schedules
from tilewright.service.operations.requests import ScheduleRequest
from tilewright.service.operations.transaction import transaction

REQUEST = {
    "name": "nightly",
    "cron": "0 30 2 * * *",
    "time_zone": "Europe/Berlin",
    "problems": [{"kernel": "gemm", "shape": {"m": n, "n": n, "k": n}} for n in range(64, 71)],
    "device_model": "nvidia-h200",
    "budget": {"trials": 50, "seconds": 90.0},
}


@pytest.fixture
def schedule_id(commit):
    commit(lambda rows: rows.device())
    with transaction() as session:
        return schedules.create_schedule(session, ScheduleRequest.model_validate(REQUEST)).id


def test_without_devices_the_page_says_to_start_a_worker(page):
    shown = page("/schedules")
    assert "tilewright worker" in shown
    assert "<form" not in shown


def test_without_schedules_the_page_offers_the_form_and_the_command(page, commit):
    commit(lambda rows: rows.device())
    shown = page("/schedules")
    assert 'id="new-schedule"' in shown
    assert "tilewright schedules create" in shown
    assert "<noscript><p" in shown


def test_schedule_shows_when_what_and_its_next_five_fires(page, schedule_id):
    shown = page("/schedules")
    for part in (
        "0 30 2 * * *",
        "Europe/Berlin",
        "gemm m=64,n=64,k=64 float32",
        "and 2 more",
        "50 trials or 1 min 30 s",
    ):
        assert part in shown
    fires = shown.split('<ol class="fires">')[1].split("</ol>")[0]
    assert fires.count("<li>") == 5
    assert "never yet" in shown


def test_paused_schedule_can_only_be_resumed(page, schedule_id):
    with transaction() as session:
        schedules.set_enabled(session, schedule_id, False)
    shown = page("/schedules")
    assert f"/v1/schedules/{schedule_id}/resume" in shown
    assert f"/v1/schedules/{schedule_id}/pause" not in shown
    assert 'class="fires"' not in shown


def test_jobs_of_the_last_fire_are_linked(page, schedule_id):
    with transaction() as session:
        jobs = schedules.run_now(session, schedule_id)
    shown = page("/schedules")
    assert all(f'href="/jobs/{job.id}"' in shown for job in jobs)
    assert "7 open jobs" in shown
    assert f"/schedules#schedule-{schedule_id}" in page(f"/jobs/{jobs[0].id}")
