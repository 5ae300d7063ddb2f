from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE, measured, request
from sqlalchemy import event, text

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.jobs.jobs import cancel_job, job
from tilewright.service.operations.jobs.request import dry_run, request_job
from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

pytestmark = pytest.mark.usefixtures("device")


def engine_entries(session) -> list[tuple[str, str, int]]:
    query = "SELECT queue_name, args->>'job_id', priority FROM procrastinate_jobs ORDER BY id"
    return [tuple(row) for row in session.execute(text(query))]


def test_a_job_is_stored_and_enqueued_in_one_transaction(session):
    job, is_new = request_job(session, request(priority=3))
    assert (is_new, job.state, job.device_model, job.trials_done) == (True, "queued", "test-gpu", 0)
    assert job.problem.shape == SHAPE
    assert list(job.problem.shape) == ["m", "n", "k"]
    assert engine_entries(session) == [("model:test-gpu", str(job.id), engine_priority(3, 0))]
    row = session.get_one(models.TuningJob, job.id)
    assert row.engine_id == session.scalar(text("SELECT id FROM procrastinate_jobs"))
    session.rollback()
    assert engine_entries(session) == []


def test_a_job_for_one_device_waits_in_that_devices_queue(session):
    job, _ = request_job(session, request(device="GPU-1"))
    assert (job.device, engine_entries(session)[0][0]) == ("GPU-1", "device:GPU-1")


def test_an_identical_open_job_is_joined_whatever_its_priority(session):
    first, _ = request_job(session, request())
    second, is_new = request_job(session, request(priority=9))
    assert (second.id, is_new) == (first.id, False)
    assert len(engine_entries(session)) == 1


@pytest.mark.parametrize(
    "other", [{"trials": 11}, {"seed": 1}, {"variants": ["naive"]}, {"device": "GPU-1"}, {"dtype": "float64"}]
)
def test_other_work_is_another_job(session, other):
    first, _ = request_job(session, request())
    second, is_new = request_job(session, request(**other))
    assert is_new
    assert second.id != first.id


def test_the_answer_about_a_new_job_is_what_a_look_at_it_says(session):
    made, _ = request_job(session, request(device="GPU-1", variants=["naive"], seed=3))
    assert made == job(session, made.id)
    other, is_new = request_job(session, request(device="GPU-1", variants=["naive"], seed=4))  # its problem is known
    assert (is_new, other) == (True, job(session, other.id))


def test_a_new_job_of_a_known_problem_takes_two_statements(session):
    request_job(session, request())
    said = []
    listening = (session.get_bind(), "before_cursor_execute", lambda *told: said.append(told[2]))
    event.listen(*listening)
    try:
        assert request_job(session, request(seed=1))[1]
    finally:
        event.remove(*listening)
    assert [statement.split()[0] for statement in said] == ["SELECT", "WITH"]


def test_an_ended_job_is_not_joined(session):
    first, _ = request_job(session, request())
    cancel_job(session, first.id)
    assert request_job(session, request())[1]


def test_the_same_key_answers_with_the_same_job_even_when_it_has_ended(session):
    first, _ = request_job(session, request(), idempotency_key="k")
    cancel_job(session, first.id)
    again, is_new = request_job(session, request(), idempotency_key="k")
    assert (again.id, again.state, is_new) == (first.id, "cancelled", False)


def test_a_key_that_joined_a_job_stays_with_it(session):
    first, _ = request_job(session, request(), idempotency_key="a")
    assert request_job(session, request(), idempotency_key="b")[0].id == first.id
    cancel_job(session, first.id)
    assert request_job(session, request(), idempotency_key="b")[0].id == first.id


def test_a_device_of_another_model_is_refused(session):
    other = registry.DeviceModel("other-gpu", "Other", "cuda", MODEL.limits, 1, {}, None)
    registry.register_device(session, other, "GPU-9", "host-b", 0, ENVIRONMENT)
    with pytest.raises(InvalidRequestError, match="this device is a other-gpu, not a test-gpu"):
        request_job(session, request(device="GPU-9", device_model="test-gpu"))
    with pytest.raises(InvalidRequestError, match="name one of other-gpu, test-gpu"):
        request_job(session, request())


def test_a_dry_run_estimates_from_the_trials_that_there_are(session, take):
    desk = take()
    desk.record(0, measured(1.0))
    desk.record(1, measured(2.0))
    assert dry_run(session, request(trials=7))["estimated_seconds"] == pytest.approx(7 * 0.5)


def test_requests_at_the_same_moment_become_one_job(configured):
    with session_scope() as session:
        registry.register_kernels(session, catalogue())
        registry.register_device(session, MODEL, "GPU-1", "host-a", 0, ENVIRONMENT)

    def ask(key: str | None):
        with session_scope() as session:
            job, is_new = request_job(session, request(), idempotency_key=key)
            return job.id, is_new

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [None, None, "k", "k"]))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1
    with session_scope() as session:
        assert len(engine_entries(session)) == 1
