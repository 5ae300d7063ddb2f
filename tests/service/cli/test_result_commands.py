"""`results`, `demand`, and schedules that look for their problems, at the command line."""

from __future__ import annotations

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.claims.claims import report_claim
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.requests import ClaimRequest
from tilewright.service.store import session as store_session


@pytest.fixture
def asked(registered) -> str:
    """The device model; two problems were asked for on it."""
    with store_session.session_scope() as session:
        slug = session.connection().exec_driver_sql("SELECT slug FROM device_models").scalar_one()
        of = {m: RequestedProblem(slug, "gemm", (("m", m), ("n", 8), ("k", 8)), "float32", ()) for m in (8, 16)}
        demand.count(session, {of[8]: 1, of[16]: 2})
    return slug


def test_without_results_it_says_so(run, registered):
    assert run("results").status == 0
    assert run("results", "list", "--stale", "--json").json == []
    ran = run("results", "retract", "7", "--reason", "wrong")
    assert (ran.status, "result" in ran.err) == (3, True)
    assert run("results", "retract", "7").status == 2
    assert run("results", "list", "--limit", "0").status == 2


def test_attention_is_listed_with_its_reasons_and_the_most_worthwhile_tuned(run, asked):
    header, first, second = run("attention").out.splitlines()
    assert header.split("\t") == ["problem", "device", "requests", "may save", "why"]
    assert "m=16" in first
    assert first.endswith("requested: 2 times; answered with the kernel's default")
    assert "m=8" in second
    assert "Nothing needs attention." in run("attention", "list", "--kind", "failing").err
    (made,) = run("attention", "tune", "--kind", "requested", "--top", "1", "--trials", "5", "--json").json
    assert (made["problem"]["shape"]["m"], made["is_new"]) == (16, True)
    listed = run("attention", "list", "--kernel", "gemm", "--device-model", asked, "--json").json
    assert listed[0]["job_id"] == made["job_id"]
    assert run("attention", "tune", "--trials", "0").status == 2
    assert run("attention", "list", "--kind", "nothing").status == 2


def test_demand_is_listed_by_traffic_and_its_top_tuned(run, asked):
    assert [line.split("\t")[0] for line in run("demand").out.splitlines()] == ["requests", "2", "1"]
    listed = run("demand", "list", "--kernel", "gemm", "--device-model", asked, "--json").json
    assert [(one["problem"]["shape"]["m"], one["count"]) for one in listed] == [(16, 2), (8, 1)]
    (made,) = run("demand", "tune", "--top", "1", "--trials", "5", "--json").json
    assert (made["problem"]["shape"]["m"], made["is_new"]) == (16, True)
    assert run("jobs", "show", made["job_id"], "--json").json["budget"]["trials"] == 5
    ran = run("demand", "tune", "--trials", "0")
    assert (ran.status, "budget.trials" in ran.err) == (2, True)


def test_a_schedule_looks_for_problems_and_tells_what_came_of_them(run, asked):
    create = ("schedules", "create", "top", "--cron", "0 0 3 * * *", "--target", "demand", "--top", "1")
    made = run(*create, "--json").json
    assert (made["target"], made["top"], made["problems"]) == ("demand", 1, [])
    assert "demand, at most 1" in run("schedules").out
    assert "demand, at most 1" in run("schedules", "show", "top").out
    assert run("schedules", "comparisons", "top", "--json").json == []
    (job,) = run("schedules", "run", "top", "--json").json
    assert job["problem"]["shape"]["m"] == 16
    (open_one,) = run("schedules", "comparisons", "top", "--json").json
    assert (open_one["job_id"], open_one["verdict"]) == (job["id"], None)
    assert "open" in run("schedules", "comparisons", "top").out
    assert run("schedules", "comparisons", "top", "--verdict", "worse", "--json").json == []


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--target", "everything"], "--target"),
        (["--target", "stale", "--problem", "gemm m=8,n=8,k=8"], "problems"),
        (["--target", "stale", "--top", "1000"], "--top"),
        (["--target", "stale", "--kernel", "nosuch"], "kernel"),
    ],
)
def test_a_target_that_does_not_fit_is_a_usage_error(run, registered, more, word):
    ran = run("schedules", "create", "x", "--cron", "0 0 3 * * *", *more)
    assert (ran.status, word in ran.err) == (2, True), ran.err


def test_claims_are_listed_and_shown(run, registered):
    assert "No claims match." in run("claims").err
    assert run("claims", "list", "--state", "strange").status == 2
    assert run("claims", "show", "1").status == 3
    with store_session.session_scope() as session:
        slug = session.connection().exec_driver_sql("SELECT slug FROM device_models").scalar_one()
        request = ClaimRequest(
            kernel="gemm",
            shape={"m": 64, "n": 32, "k": 48},
            device_model=slug,
            driver="host",
            variant="tiled",
            configuration={"TILE_WIDTH": 16},
            source_hash=catalogue().get("gemm").source_hash("tiled"),
            seen="one row is wrong",
        )
        made, _ = report_claim(session, request)
    header, line = run("claims").out.splitlines()
    assert header.split("\t") == ["id", "state", "problem", "device", "variant", "seen"]
    assert line.split("\t")[:2] == [str(made.id), "open"]
    assert run("claims", "list", "--state", "open", "--json").json["items"][0]["seen"] == "one row is wrong"
    shown = run("claims", "show", str(made.id)).out
    assert "tiled TILE_WIDTH=16" in shown
    assert str(made.job_id) in shown
    assert run("claims", "show", str(made.id), "--json").json["state"] == "open"
