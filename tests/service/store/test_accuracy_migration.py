"""Revision 0003, back and forth, on rows of a service at work: nothing that was tuned is lost."""

from __future__ import annotations

import hashlib
import json

import pytest
from factories import H200, SHAPE, Rows
from found import find_best
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.operations.answers import Match
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import schema
from tilewright.service.store.session import session_scope, sqlalchemy_url

WANTED = JobRequest(
    kernel="linear", shape=SHAPE, options={"activation": "relu"}, budget=BudgetRequest(trials=7, seconds=2.5)
)


@pytest.fixture
def tuned(database_url, configured):
    """A best of gemm in each accuracy, one of gemv, and an open job of linear; back at the version before."""
    with session_scope() as session:
        rows = Rows(session)
        rows.best(time_ms=0.5, options={"trans_b": True})
        rows.best(time_ms=0.25, options={"accuracy": "tf32"})
        rows.best({"m": 77, "n": 88}, kernel="gemv")
        job, _ = request_job(session, WANTED)
    schema.downgrade(configured, "0002")
    return configured, job.id


def problems(url):
    engine = create_engine(sqlalchemy_url(url), poolclass=NullPool)
    query = (
        "SELECT kernels.name, options, hash FROM problems JOIN kernels ON kernel_id = kernels.id ORDER BY problems.id"
    )
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def as_before(kernel, shape, options):
    problem = {"dtype": "float32", "kernel": kernel, "options": options, "shape": shape}
    return hashlib.sha256(json.dumps(problem, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_the_version_before_finds_its_problems_as_it_wrote_them(tuned):
    url, _ = tuned
    gemm, other, gemv, linear = problems(url)
    options = {"trans_a": False, "trans_b": True, "beta_zero": True}
    assert gemm == ("gemm", options, as_before("gemm", SHAPE, options))
    assert other[1]["accuracy"] == "tf32"  # nothing that the version before could ask for
    assert "accuracy" not in gemv[1]
    assert linear == ("linear", {"activation": "relu"}, as_before("linear", SHAPE, {"activation": "relu"}))


def test_what_was_tuned_before_is_the_answer_for_fp32_afterwards(tuned):
    url, _ = tuned
    schema.upgrade(url)
    with session_scope() as session:
        kept = find_best(session, "gemm", H200.slug, SHAPE, options={"trans_b": True})
        assert (kept.match, kept.time_ms, kept.accuracy) == (Match.EXACT, 0.5, "fp32")
        other = find_best(session, "gemm", H200.slug, SHAPE, options={"accuracy": "tf32"})
        assert (other.match, other.time_ms, other.accuracy) == (Match.EXACT, 0.25, "tf32")


def test_problems_of_other_kernels_keep_their_hash(tuned):
    url, _ = tuned
    before = [row for row in problems(url) if row[0] == "gemv"]
    schema.upgrade(url)
    assert [row for row in problems(url) if row[0] == "gemv"] == before


def test_an_open_job_is_joined_by_the_same_request_afterwards(tuned):
    url, job_id = tuned
    schema.upgrade(url)
    with session_scope() as session:
        joined, is_new = request_job(session, WANTED)
    assert (joined.id, is_new) == (job_id, False)


def test_going_back_and_forth_changes_nothing(tuned):
    url, _ = tuned
    schema.upgrade(url)
    once = problems(url)
    schema.downgrade(url, "0002")
    schema.upgrade(url)
    assert problems(url) == once
    schema.check(url)
