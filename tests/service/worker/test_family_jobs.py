"""Families end to end: a job for every size of an axis, a worker on the CPU device, and the table that is stored."""

from __future__ import annotations

import os
import signal

import pytest
from fleet import Fleet
from sqlalchemy import func, select

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.best.tables import find_table
from tilewright.service.operations.jobs.request import dry_run, request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.tuner.search.searcher import SAMPLERS

GEMM = catalogue().get("gemm")
SHAPE = {"m": "1..24", "n": 16, "k": 20}
FAMILY = Family.of(GEMM, SHAPE)


def wanted(shape=SHAPE, **more) -> dict[str, object]:
    return {"shape": shape, "variants": None, "sampler": SAMPLERS[0], "budget": BudgetRequest(trials=2)} | more


def tables(fleet: Fleet) -> list[models.FamilyTable]:
    with fleet.session() as session:
        return list(session.scalars(select(models.FamilyTable).order_by(models.FamilyTable.id)))


@pytest.mark.in_turn(2)
def test_a_family_is_one_job_whose_verified_table_is_superseded_as_a_whole(standing_fleet):
    fleet = standing_fleet
    first = fleet.request(**wanted())
    assert fleet.request(**wanted()) == first  # an identical open job is joined
    done = fleet.wait_for_state(first, "done", "failed")
    assert (done.state, done.error) == ("done", None)
    assert dict(done.problem.shape) == SHAPE
    assert done.trials_done >= 2
    (stored,) = tables(fleet)
    assert (stored.low, stored.high, stored.job_id) == (1, 24, first)
    assert done.result["table"] == stored.id
    for one in stored.document["ranges"]:
        assert {one["low"], one["high"]} <= set(one["verified_at"])
    with fleet.session() as session:
        table = find_table(session, GEMM, FAMILY, done.device_model)
        assert session.scalar(select(func.count()).select_from(models.Trial)) == 0
    assert (table.id, table.job_id, table.ranges[0].low, table.ranges[-1].high) == (stored.id, first, 1, 24)

    again = fleet.request(**wanted(seed=3))
    assert fleet.wait_for_state(again, "done", "failed").error is None
    before, now = tables(fleet)
    assert [before.superseded_by_id, now.superseded_by_id] == [now.id, None]
    with fleet.session() as session:
        assert find_table(session, GEMM, Family.of(GEMM, {**SHAPE, "m": "1..9"}), done.device_model).id == now.id
        with pytest.raises(NotFoundError, match=r"tilewright tune gemm --shape m=1\.\.24,n=17,k=20"):
            find_table(session, GEMM, Family.of(GEMM, {**SHAPE, "n": 17}), done.device_model)


@pytest.mark.in_turn(3)
def test_a_cancelled_job_stores_no_table(standing_fleet):
    fleet, before = standing_fleet, len(tables(standing_fleet))
    job = fleet.request(**wanted({"m": "1..512", "n": 256, "k": 256}, budget=BudgetRequest(trials=5000)))
    fleet.wait_for_trials(job, 1)
    fleet.cancel(job)
    assert fleet.wait_for_state(job, "cancelled", "done", "failed").state == "cancelled"
    assert len(tables(fleet)) == before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"variants": ["naive"]}, "variants: is for a single problem"),
        ({"budget": BudgetRequest(target_ms=1.0)}, "budget.target_ms: is for a single problem"),
        ({"sampler": "random"}, "sampler: is for a single problem"),
        ({"shape": {"m": "1..24", "n": "1..3", "k": 20}}, "one axis must be a range"),
        ({"shape": {"m": 3, "n": "1..3", "k": 20}}, "whose size may vary at launch"),
        ({"shape": {"m": "many", "n": 3, "k": 20}}, "LOW..HIGH"),
    ],
)
def test_what_no_family_can_be_tuned_for_is_refused(rows, more, says):
    rows.device()
    with pytest.raises((InvalidRequestError, InvalidProblemError), match=says):
        request_job(rows.session, JobRequest(kernel="gemm", **wanted(**more)))


def test_a_dry_run_says_what_would_be_tuned_and_rows_are_of_one_range_each(rows):
    rows.device()
    request = JobRequest(kernel="gemm", **wanted(options={"batch_invariant": True}))
    seen = dry_run(rows.session, request)
    assert seen["problem"]["shape"] == SHAPE
    assert seen["problem"]["options"]["batch_invariant"] is True
    assert seen["space_size"] > 0
    jobs = [request_job(rows.session, request)[0], request_job(rows.session, JobRequest(kernel="gemm", **wanted()))[0]]
    assert [job.problem.options.get("batch_invariant", False) for job in jobs] == [True, False]
    assert len({job.id for job in jobs}) == 2


@pytest.mark.faults
def test_a_job_whose_process_dies_begins_anew_and_stores_one_table(fleet):
    fleet.start_worker()
    fleet.wait_for_device()
    job = fleet.request(**wanted())
    fleet.wait_for_trials(job, 1)
    for pid in fleet.runner_pids(job):
        os.kill(pid, signal.SIGKILL)
    done = fleet.wait_for_state(job, "done", "failed")
    assert (done.state, done.error, done.epoch) == ("done", None, 2)
    assert [one.job_id for one in tables(fleet)] == [job]
