"""Commands about the fleet, its webhooks and schedules, and what pruning removes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Schedule, TuningJob
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


PROBLEM = "gemm m=64,n=32,k=48"
CREATE = ("schedules", "create", "nightly", "--cron", "0 30 2 * * *", "--problem", PROBLEM)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedules", "create", "nightly", "--problem", PROBLEM], ["--cron"]),
        (["schedules", "create", "nightly", "--cron", "0 0 0 * * *"], ["--problem"]),
        ([*CREATE[:-1], "gemm"], ["--problem", "Example"]),
        ([*CREATE[:-1], ""], ["--problem", "Example"]),
        ([*CREATE[:-1], "gemm m=64 float32 float64"], ["--problem", "Example"]),
        ([*CREATE[:-1], "gemm 64"], ["shape", "name=value"]),
        ([*CREATE[:-1], f"{PROBLEM} trans_b=q/q"], ["options.trans_b"]),
        ([*CREATE, "--overlap", "double"], ["--overlap", "queue"]),
        ([*CREATE, "--trials", "0"], ["budget.trials"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, unreachable, arguments, words):
    ran = run(*arguments)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert all(word in ran.err for word in words), ran.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--cron", "* * * *"], ["cron", "five fields", "0 30 2 * * *"]),
        (["--time-zone", "Mars"], ["time_zone", "Europe/Berlin"]),
        (["--problem", "gemmm m=1"], ["problems.1.kernel", "gemmm"]),
    ],
)
def test_what_only_the_service_can_judge_is_refused_and_nothing_is_stored(run, registered, more, words):
    ran = run(*CREATE, *more)
    assert (ran.status, ran.out) == (2, "")
    assert all(word in ran.err for word in words), ran.err
    with store_session.session_scope() as session:
        assert session.scalars(select(Schedule)).all() == []


def test_the_life_of_a_schedule(run, registered):
    more = ("--problem", "gemm m=8,n=8,k=8 float64 trans_b=true", "--time-zone", "Europe/Berlin", "--trials", "5")
    created = run(*CREATE, *more)
    assert created.status == 0, created.err
    assert "0 30 2 * * * (Europe/Berlin)" in created.out
    assert created.out.count("02:30:00 CE") == 5
    assert "gemm m=8,n=8,k=8 float64 trans_b=true" in created.out

    listed = run("schedules").out.splitlines()
    assert len(listed) == 2
    assert "nightly\t0 30 2 * * *\tEurope/Berlin" in listed[1]
    assert listed[1].endswith("gemm m=64,n=32,k=48 float32 and 1 more")

    shown = run("schedules", "show", "nightly", "--json").json
    assert (shown["overlap"], shown["budget"]["trials"], len(shown["next_fires"])) == ("skip", 5, 5)
    assert run("schedules", "show", str(shown["id"]), "--json").json == shown

    assert run("schedules", "pause", "nightly").out == "nightly paused\n"
    assert "\tpaused\t" in run("schedules", "list").out
    jobs = run("schedules", "run", "nightly", "--json").json
    assert [(job["schedule_id"], job["state"]) for job in jobs] == [(shown["id"], "queued")] * 2
    assert "02:30:00 CE" in run("schedules", "resume", "nightly").out

    deleted = run("schedules", "delete", "nightly")
    assert (deleted.out, "2 of its jobs keep running" in deleted.err) == ("nightly deleted\n", True)
    with store_session.session_scope() as session:
        assert len(session.scalars(select(TuningJob)).all()) == 2


def test_an_edit_changes_what_is_named_and_leaves_the_rest(run, registered):
    before = run(*CREATE, "--trials", "5", "--overlap", "queue", "--json").json
    edited = run("schedules", "edit", "nightly", "--seconds", "60", "--time-zone", "Europe/Berlin", "--json")
    assert edited.status == 0, edited.err
    assert edited.json["budget"] == {"trials": 5, "seconds": 60.0, "target_ms": None}
    same = ("id", "cron", "problems", "overlap", "priority", "enabled", "device_model")
    assert [edited.json[name] for name in same] == [before[name] for name in same]
    assert edited.json["time_zone"] == "Europe/Berlin"

    found = run("schedules", "edit", "nightly", "--target", "stale", "--top", "3", "--name", "weekly", "--json").json
    assert (found["target"], found["top"], found["problems"], found["name"]) == ("stale", 3, [], "weekly")
    back = run("schedules", "edit", "weekly", "--problem", PROBLEM, "--json").json
    assert (back["target"], back["problems"]) == ("problems", before["problems"])

    for arguments, words in (
        (["nightly"], ["nightly", "weekly"]),
        (["weekly", "--cron", "* * * *"], ["cron", "five fields"]),
        (["weekly"], ["--cron"]),
    ):
        refused = run("schedules", "edit", *arguments, *([] if arguments != ["nightly"] else ["--top", "2"]))
        assert (refused.status != 0, refused.out) == (True, "")
        assert all(word in refused.err for word in words), refused.err
    assert run("schedules", "show", "weekly", "--json").json == back


def test_a_schedule_that_is_not_there_is_exit_code_3_with_those_that_are(run, registered):
    run(*CREATE)
    for command in ("show", "pause", "resume", "delete", "run"):
        ran = run("schedules", command, "weekly")
        assert (ran.status, ran.out) == (3, "")
        assert "'weekly'" in ran.err
        assert "nightly" in ran.err


def test_no_schedules_say_how_to_make_one(run, registered):
    ran = run("schedules", "list")
    assert (ran.status, ran.out) == (0, "")
    assert "schedules create" in ran.err
