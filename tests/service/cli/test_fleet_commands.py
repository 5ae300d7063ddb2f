"""Commands about the fleet and its webhooks, and what pruning removes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from tilewright.service.operations.transaction import transaction
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


def entries() -> int:
    with transaction() as session:
        return session.scalar(select(func.count()).select_from(models.AuditEntry))


def test_without_a_time_to_keep_it_is_a_usage_error(run, local):
    ran = run("db", "prune")
    assert ran.status == 2
    assert "--older-than" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_dry_run_changes_nothing_and_the_real_one_does(run, local):
    with transaction() as session:
        for days in (10, 400):
            at = datetime.now(UTC) - timedelta(days=days)
            session.add(models.AuditEntry(at=at, actor="command line", action="of the test", changed={}))
    arguments = ("db", "prune", "--older-than", "30", "--audit-older-than", "365", "--json")
    dry = run(*arguments, "--dry-run")
    assert dry.json == {"dry_run": True, "jobs": 0, "trials": 0, "sample_bytes": 0, "audit_entries": 1}
    assert entries() == 2
    assert run(*arguments).json == {"dry_run": False, "jobs": 0, "trials": 0, "audit_entries": 1}
    assert entries() == 1
