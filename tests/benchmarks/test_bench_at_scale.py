"""make bench-scale: its database is one of legal results, and its workers do a job to its end."""

import threading

from found import find_best
from sqlalchemy import text

from tilewright.service.operations.jobs.jobs import job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store.session import database_url, session_scope


def test_a_small_database_answers_exactly_and_a_simulated_worker_adds_to_it(configured, benchmark_module):
    fill, workers = benchmark_module("at_scale.fill"), benchmark_module("at_scale.workers")
    sizes = fill.Sizes(trials=200, problems=20, models=3, hot=2)
    fill.fill(database_url(), sizes)
    hot, *_, cold = fill.shapes(sizes)
    with session_scope() as session:
        assert {find_best(session, "gemm", fill.slug(number), hot).match for number in (1, 2, 3)} == {"exact"}
        assert session.scalar(text("SELECT count(*) FROM trials")) == 18 * 5 + 2 * 3 * 18
        request = JobRequest(kernel="gemm", shape=cold, device_model=fill.slug(3), budget=BudgetRequest(trials=3))
        made, _ = request_job(session, request)
    figures = workers.Figures()
    worker = workers.Worker(3, 0.0, figures, threading.Event())
    with session_scope() as session:
        entry = session.scalar(text("SELECT engine_id FROM tuning_jobs WHERE state = 'queued'"))
    worker._job(made.id, entry)
    with session_scope() as session:
        ended = job(session, made.id)
    assert (ended.state, ended.trials_done) == ("done", 3)
    assert ended.result["published"] in {True, False}
    assert len(figures.took_ms["trial"]) == 3
