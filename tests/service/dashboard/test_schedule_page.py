"""The page of schedules: what is shown of them; the browser's tests press the buttons."""

import re

import pytest
from factories import CPU, H100

from tilewright.service.dashboard.pages.schedules import form_values
from tilewright.service.operations.requests import ScheduleRequest
from tilewright.service.operations.schedules import schedules
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


def test_without_devices_the_form_says_to_start_a_worker(page):
    shown = page("/schedules/new")
    assert "tilewright worker" in shown
    assert "<form" not in shown


def test_without_schedules_the_page_leads_to_the_form_and_the_command(page, commit):
    commit(lambda rows: rows.device())
    shown = page("/schedules")
    assert 'href="/schedules/new"' in shown
    assert 'href="/schedules/new?target=stale"' in shown
    assert "tilewright schedules create" in shown
    form = page("/schedules/new")
    assert 'hx-post="/v1/schedules"' in form
    assert "<noscript><p" in form


def test_schedule_shows_when_what_and_its_next_five_fires(page, schedule_id):
    shown = page("/schedules")
    for part in (
        "<code>30 2 * * *</code>",
        "Europe/Berlin",
        "gemm m=64,n=64,k=64 float32",
        "and 2 more",
        "50 trials or 1 min 30 s",
    ):
        assert part in shown
    fires = shown.split('<ol class="fires">')[1].split("</ol>")[0]
    assert fires.count("<li>") == 5
    assert len(re.findall(r">\d{4}-\d\d-\d\d 02:30:00 CES?T</time>", fires)) == 5  # as the clocks there show it
    assert "none yet" in shown


def test_paused_schedule_can_only_be_resumed(page, schedule_id):
    with transaction() as session:
        schedules.set_enabled(session, schedule_id, False)
    shown = page("/schedules")
    assert f"/v1/schedules/{schedule_id}/resume" in shown
    assert f"/v1/schedules/{schedule_id}/pause" not in shown
    assert 'class="fires"' not in shown


def test_a_new_schedule_is_for_a_model_whose_worker_is_running(page, commit):
    commit(lambda rows: (rows.model_alone(H100), rows.device(CPU)))
    shown = page("/schedules/new").partition('name="device_model"')[2].partition("</select>")[0]
    assert re.findall(r'<option value="(.*?)">(.*?)</option>', shown) == [
        ("cpu:test", "a CPU"),
        ("nvidia-h100", "NVIDIA H100 (no worker is running)"),
    ]


def test_form_of_a_schedule_holds_everything_that_it_says(page, schedule_id):
    with transaction() as session:
        changed = REQUEST | {"overlap": "queue", "priority": 8, "variants": ["tiled", "naive"], "compiler": "nvrtc"}
        schedules.change_schedule(session, schedule_id, ScheduleRequest.model_validate(changed))
        shown_by = form_values(schedules.schedule(session, schedule_id))
    assert set(shown_by) == set(ScheduleRequest.model_fields) - {"budget"} | {"trials", "seconds", "target_ms"}
    shown = page(f"/schedules/{schedule_id}/edit")
    assert f'hx-put="/v1/schedules/{schedule_id}"' in shown
    for field in (
        'name="name" required maxlength="64" autocomplete="off" value="nightly"',
        'value="0 30 2 * * *"',
        'value="Europe/Berlin"',
        "gemm m=64,n=64,k=64 float32\ngemm m=65,n=65,k=65 float32",
        '<option value="queue" selected>',
        '<option value="nvrtc" selected>',
        '<option value="nvidia-h200" selected>',
        'name="seconds" type="number" min="1" step="any" value="90"',
        'max="9" value="8"',
        'value="tiled, naive"',
        'type="checkbox" checked',
    ):
        assert field in shown, field


def test_form_shows_when_what_is_written_would_be_due_or_why_never(page, schedule_id):
    for path in ("/schedules/new", f"/schedules/{schedule_id}/edit"):
        shown = page(f"{path}?cron=0+0+12+25+12+*&time_zone=UTC")
        due = shown.split('id="due-times"')[1].split("</div>")[0]
        assert re.findall(r">\d{4}-(\S+ \S+) UTC</time></li>", due) == ["12-25 12:00:00"] * 5
        assert 'value="0 0 12 25 12 *"' in shown
        refused = page(f"{path}?cron=0+0+12+30+2+*").split('id="due-times"')[1].split("</div>")[0]
        assert "no date ever matches" in refused
        assert "no time zone" in page(f"{path}?time_zone=Mars/Olympus").split('id="due-times"')[1]


def test_form_of_no_schedule_is_not_there(page):
    assert "No such schedule" in page("/schedules/17/edit", 404)


def test_schedule_that_looks_for_problems_says_what_it_looks_for(page, commit):
    commit(lambda rows: rows.device())
    searching = {"problems": [], "target": "demand", "top": 7, "kernel": "gemm"}
    with transaction() as session:
        made = schedules.create_schedule(session, ScheduleRequest.model_validate(REQUEST | searching))
    shown = page("/schedules")
    assert "the most requested problems that are not tuned, only gemm; 7 at most" in shown
    assert 'href="/demand?device_model=nvidia-h200"' in shown
    form = page(f"/schedules/{made.id}/edit")
    assert '<option value="demand" selected>' in form
    assert "<option selected>gemm</option>" in form
    assert '<option value="stale" selected>' in page("/schedules/new?target=stale")


def test_jobs_of_the_last_fire_are_linked(page, schedule_id):
    with transaction() as session:
        jobs = schedules.run_now(session, schedule_id)
    shown = page("/schedules")
    assert all(f'href="/jobs/{job.id}"' in shown for job in jobs)
    assert "7 open jobs" in shown
    assert f"/schedules#schedule-{schedule_id}" in page(f"/jobs/{jobs[0].id}")
