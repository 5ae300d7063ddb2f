from __future__ import annotations

import pytest
from sqlalchemy import select

from tilewright.service.store import session as store_session
from tilewright.service.store.models import Schedule, TuningJob

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
