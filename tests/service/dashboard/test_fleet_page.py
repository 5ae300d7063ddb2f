"""The page of the fleet: who works, who does not and why, what waits for whom, what went wrong last."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from factories import H200, NEW, SHAPE
from sqlalchemy import Engine, event, func
from test_demand_page import asked

from tilewright.service.operations import registry
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.requests import WebhookRequest
from tilewright.service.operations.webhooks import webhooks
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import DeliveryState, DeviceState, JobState, TuningJob
from tilewright.service.store.session import session_scope

MIG = replace(H200, slug="nvidia-h200-mig-1g.18gb", name="NVIDIA H200 MIG 1g.18gb")


def working(rows, uuid="GPU-nvidia-h200"):
    """A device that is running a job, as its worker writes it."""
    study, problem, device = rows.study()
    job = rows.job(problem, device, study, JobState.RUNNING, 4)
    device.worker = job.worker = "host:17:0"
    rows.session.flush()
    return device.uuid, job.id


def study_of(job):
    with session_scope() as session:
        return session.get_one(TuningJob, job).study_id


def line_of(shown: str, uuid: str) -> str:
    """The text of a device's row."""
    _, _, row = shown.partition(f'<tr id="device-{uuid.replace(":", "-")}">')
    return " ".join(re.sub(r"<[^>]+>", " ", row.partition("</tr>")[0]).split())


def test_without_devices_it_says_how_to_start_workers(page):
    shown = page("/fleet")
    assert "tilewright worker --all" in shown
    assert "<table" not in shown


def test_device_shows_its_job_with_progress_and_its_environment(page, commit):
    uuid, job = commit(working)
    shown = page("/fleet")
    line = line_of(shown, uuid)
    assert "NVIDIA H200" in line
    assert "▶ at work" in line
    assert "gemm m=256,n=100,k=784 float32" in line
    assert "searching , 4 of 10 trials" in line
    assert "driver 580.159" in line
    assert re.search(r"\d+ s ago", line)
    assert f'href="/jobs/{job}"' in shown
    assert f'hx-post="/v1/devices/{uuid}/drain"' in shown
    assert '<a href="/v1/devices">JSON</a> <a href="/v1/devices?format=csv">CSV</a>' in shown


def test_data_are_the_apis_own(client, commit):
    commit(lambda rows: rows.device())
    header, row, _ = client.get("/v1/devices?format=csv").text.split("\r\n")
    assert dict(zip(header.split(","), row.split(","), strict=True))["uuid"] == "GPU-nvidia-h200"
    assert client.get("/v1/devices?format=xml").status_code == 422


def test_states_are_told_apart(page, commit):
    def make(rows):
        for name in ("idle", "drained", "silent", "lost"):
            rows.device(uuid=f"GPU-{name}")
        fleet.drain_device(rows.session, "GPU-drained")
        registry.set_device_state(rows.session, "GPU-lost", DeviceState.LOST)
        silent = rows.session.query(models.Device).filter_by(uuid="GPU-silent").one()
        silent.heartbeat_at = func.now() - timedelta(seconds=10 * settings().stalled_after_s)

    commit(make)
    uuid, _ = commit(working)
    commit(lambda rows: fleet.drain_device(rows.session, uuid))
    shown = page("/fleet")
    assert "● idle" in line_of(shown, "GPU-idle")
    assert "❚❚ drained" in line_of(shown, "GPU-drained")
    assert "Resume" in line_of(shown, "GPU-drained")
    assert "○ offline" in line_of(shown, "GPU-silent")
    assert "10 min ago" in line_of(shown, "GPU-silent")
    assert "goes to another device" not in line_of(shown, "GPU-silent")  # it has none
    assert "✗ lost" in line_of(shown, "GPU-lost")
    assert "restart its worker" in line_of(shown, "GPU-lost")
    assert "◐ draining" in line_of(shown, uuid)
    assert re.findall(r"<li><b>(\d+)</b> (\w+)</li>", shown) == [
        ("1", name) for name in ("lost", "offline", "draining", "drained", "idle")
    ]


def test_job_of_a_device_that_fell_silent_is_said_to_go_elsewhere(page, commit):
    uuid, _ = commit(working)

    def falls_silent(rows):
        device = rows.session.query(models.Device).filter_by(uuid=uuid).one()
        device.heartbeat_at = func.now() - timedelta(seconds=10 * settings().stalled_after_s)

    commit(falls_silent)
    line = line_of(page("/fleet"), uuid)
    assert "○ offline" in line
    assert "its job goes to another device" in line


def test_more_devices_and_jobs_take_no_more_statements(page, commit):
    seen = []

    def note(_connection, _cursor, statement, *_of):
        seen.append(statement)

    def taken():
        seen.clear()
        page("/fleet")
        return len(seen)

    def another(rows, number):
        study, problem, _ = rows.study(SHAPE | {"m": number})
        device = rows.device(uuid=f"GPU-{number}")
        device.worker = f"host:{number}:0"
        rows.job(problem, device, study, JobState.RUNNING).worker = device.worker

    commit(lambda rows: another(rows, 1))
    event.listen(Engine, "before_cursor_execute", note)
    try:
        few = taken()
        commit(lambda rows: [another(rows, n) for n in range(2, 8)])
        assert taken() == few
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_slice_of_a_gpu_is_named_with_the_gpu_that_it_is_cut_from(page, commit):
    def make(rows):
        registry.register_kernels(rows.session, registry.catalogue())
        registry.register_device(rows.session, MIG, "MIG-5c1", "host", 0, NEW, physical_uuid="GPU-whole")

    commit(make)
    line = line_of(page("/fleet"), "MIG-5c1")
    assert "NVIDIA H200 MIG 1g.18gb" in line
    assert "slice of GPU-whole" in line


def test_jobs_that_nobody_takes_are_pointed_out(page, commit):
    def queued(rows, state=JobState.QUEUED):
        _, problem, device = rows.study()
        rows.job(problem, device, None, state, 0)
        rows.job(problem, device, None, state, 0)

    commit(queued)
    waiting = page("/fleet").split(">Open jobs</h2>")[1]
    assert "<small>running</small>" in waiting
    assert ">2</a>" in waiting
    commit(lambda rows: fleet.drain_device(rows.session, "GPU-nvidia-h200"))
    assert "no running worker takes these jobs" in page("/fleet").split(">Open jobs</h2>")[1]


def failed_with_message(rows):
    """A failed job, and a message about it that did not arrive."""
    study, problem, device = rows.study(SHAPE | {"m": 9})
    job = rows.job(problem, device, study, JobState.FAILED)
    job.error, job.finished_at = "Its worker died <5> times in a row.", func.now()
    webhooks.create_webhook(rows.session, WebhookRequest(name="ci", url="https://ci.example/hook"))
    webhooks.announce(rows.session, job.id)
    message = rows.session.query(models.WebhookDelivery).one()
    message.attempts, message.error = 3, "It answered with status 503."
    rows.session.flush()
    return job.id, message.id


def test_last_errors_lead_to_the_job_and_to_the_messages_of_the_webhook(page, commit):
    job, message = commit(failed_with_message)
    errors = page("/fleet").split("<h2>Recent errors</h2>")[1]
    assert "Its worker died &lt;5&gt; times in a row." in errors
    assert f'href="/jobs/{job}"' in errors
    assert "It answered with status 503." in errors
    assert 'href="/webhooks/ci"' in errors
    shown = page("/webhooks/ci")
    assert "https://ci.example/hook" in shown
    assert f"/v1/webhooks/ci/deliveries/{message}/retry" in shown
    assert "It answered with status 503." in shown
    assert "No such webhook" in page("/webhooks/nothing", 404)

    def arrives(rows):
        delivery = rows.session.get_one(models.WebhookDelivery, message)
        delivery.state, delivery.delivered_at, delivery.error = DeliveryState.DELIVERED, func.now(), None

    commit(arrives)
    assert "webhooks/ci" not in page("/fleet")
    assert "arrived" in page("/webhooks/ci")


@pytest.mark.parametrize(("scope", "sees"), [(Scope.READ, False), (Scope.TUNE, False), (Scope.ADMIN, True)])
def test_only_an_admin_is_offered_buttons_and_shown_webhooks(as_key, commit, scope, sees):
    commit(failed_with_message)
    shown = as_key(scope, "/fleet").text
    assert ("hx-post" in shown) is sees
    assert ("webhooks/ci" in shown) is sees
    assert ("with a key of the scope admin" in shown) is not sees


@pytest.mark.parametrize("place", ["/jobs/{job}", "/studies/{study}"])
def test_only_who_may_tune_is_offered_to_cancel(as_key, commit, place):
    _, job = commit(working)
    for scope in (Scope.READ, Scope.TUNE):
        shown = as_key(scope, place.format(job=job, study=study_of(job))).text
        assert ("hx-post" in shown) is (scope is Scope.TUNE)
        assert ("with a key of the scope tune" in shown) is (scope is Scope.READ)


@pytest.mark.parametrize(
    ("path", "offered"), [("/schedules", "New schedule"), ("/schedules/new", "<form"), ("/demand", "Tune this")]
)
def test_who_may_not_change_anything_is_told_which_key_may(as_key, commit, path, offered):
    def make(rows):
        rows.device()
        asked(rows, SHAPE)

    commit(make)
    for scope in (Scope.READ, Scope.TUNE):
        shown = as_key(scope, path).text
        assert (offered in shown) is (scope is Scope.TUNE)
        assert ("with a key of the scope tune" in shown) is (scope is Scope.READ)


def test_messages_of_webhooks_are_not_shown_to_other_keys(as_key, commit):
    commit(failed_with_message)
    refused = as_key(Scope.TUNE, "/webhooks/ci")
    assert refused.status_code == 403
    assert "ci.example" not in refused.text
