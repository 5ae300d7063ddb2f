from __future__ import annotations

import pytest
from sqlalchemy import update

from tilewright.service.store import models
from tilewright.service.store.session import session_scope

GEMM = ("tune", "gemm", "--shape", "m=256,n=100,k=784")
URL = "https://ci.example/hook"


def test_a_device_is_drained_seen_as_such_and_resumed(run, registered):
    drained = run("drain", registered, "--wait")
    assert (drained.status, drained.err) == (
        0,
        f"{registered} is drained; put it back: tilewright resume {registered}\n",
    )
    assert "drained" in run("devices").out
    assert run("devices", "--json").json["registered"][0]["draining"] is True
    waiting = run(*GEMM, "--no-wait")
    assert f"tilewright resume {registered}" in waiting.err
    assert run("resume", registered, "--json").json["draining"] is False
    assert "drained" not in run("devices").out


def test_a_device_that_ends_a_job_is_said_to_be_draining(run, registered):
    job = run(*GEMM, "--no-wait", "--json").json
    with session_scope() as session:
        session.execute(update(models.Device).values(worker="host:1:cpu"))
        session.execute(update(models.TuningJob).values(worker="host:1:cpu", state=models.JobState.RUNNING))
    said = run("drain", registered).err
    assert f"job {job['job']['id'] if 'job' in job else job['id']} runs to its end" in said
    assert "draining" in run("devices").out


@pytest.mark.usefixtures("registered")
def test_a_device_that_nobody_registered_is_not_found(run):
    missing = run("drain", "GPU-none")
    assert missing.status == 2
    assert "GPU-none" in missing.err


@pytest.mark.usefixtures("local")
def test_webhooks_are_made_listed_and_deleted(run):
    made = run("webhooks", "create", "ci", URL, "--state", "failed")
    assert made.status == 0
    assert made.out.startswith("whsec_")
    (listed,) = run("webhooks", "list", "--json").json["items"]
    assert (listed["name"], listed["states"]) == ("ci", ["failed"])
    assert "secret" not in listed
    assert "ci.example" in run("webhooks").out
    assert run("webhooks", "deliveries", "ci").err == "No messages yet.\n"
    assert run("webhooks", "create", "ci", URL).status == 1
    assert run("webhooks", "create", "x", "https://127.0.0.1/").status == 2
    assert run("webhooks", "delete", "ci").status == 0
    assert run("webhooks", "delete", "ci").status == 3
