"""Trials that the surroundings ended, and failed ones that somebody wants again, are tried again and kept."""

import pytest
from factories import TILED_16, Rows

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import ConflictError, NotFoundError
from tilewright.service.operations.jobs.record_trial import TrialContext, record_trial
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.studies.retries import retry_trials
from tilewright.service.operations.studies.rows import prior_trials
from tilewright.service.store import models
from tilewright.tuner.loop.tune import Trial
from tilewright.tuner.outcome import Evaluation, Outcome, Timing

GEMM = catalogue().get("gemm")
WIDTHS = {"interrupted": 8, "compile_failed": 16, "wrong_result": 32}


def width(value):
    return TILED_16.of("tiled", {**TILED_16.values, "TILE_WIDTH": value})


@pytest.fixture
def study(session):
    """One with a trial of each of these outcomes."""
    rows = Rows(session)
    study, problem, device = rows.study()
    job = rows.job(problem, device, study)
    for outcome, value in WIDTHS.items():
        rows.trial(study, job, width(value), outcome=Outcome(outcome))
    return study, problem, device, job


def widths_that_count(session, study):
    return {trial.configuration.values["TILE_WIDTH"] for trial in prior_trials(session, study.id, GEMM)}


def test_what_the_surroundings_ended_is_not_held_against_a_configuration(session, study):
    assert widths_that_count(session, study[0]) == {16, 32}


def test_all_failed_trials_are_tried_again_by_a_job_that_begins_with_them_and_wrong_ones_are_not(session, study):
    study, _, _, job = study
    answer = retry_trials(session, job.id)
    assert answer.state == "queued"
    assert {start["TILE_WIDTH"] for start in answer.starts} == {8, 16}
    assert answer.budget["trials"] == 2
    assert widths_that_count(session, study) == {32}


def test_one_trial_is_tried_again_by_its_number(session, study):
    study, _, _, job = study
    answer = retry_trials(session, job.id, 2)
    assert [start["TILE_WIDTH"] for start in answer.starts] == [32]
    with pytest.raises(NotFoundError):
        retry_trials(session, job.id, 77)


def test_where_nothing_has_failed_there_is_nothing_to_try_again(session):
    rows = Rows(session)
    study, problem, device = rows.study()
    job = rows.job(problem, device, study)
    rows.trial(study, job, TILED_16, 1.0)
    with pytest.raises(ConflictError, match="nothing to try again"):
        retry_trials(session, job.id)


def test_the_new_trial_stands_beside_the_one_that_is_given_up(session, study):
    study, problem, device, job = study
    retry_trials(session, job.id)
    row = session.get_one(models.TuningJob, job.id)
    row.state, study.next_number = models.JobState.RUNNING, len(WIDTHS)
    session.flush()
    context = TrialContext(
        job.id, row.epoch, study.id, device.id, GEMM, GEMM.problem(problem.shape), kernel_variant_ids(session, GEMM)
    )
    timing = Timing(2.0, 0.1, (2.0,), "warm")
    for done, value in enumerate((8, 16), 1):
        evaluation = Evaluation(Outcome.MEASURED, warm=timing, cold=Timing(2.0, 0.1, (2.0,), "cold"))
        first = record_trial(session, context, Trial(0, width(value), evaluation), done, 1.0)
        assert record_trial(session, context, Trial(0, width(value), evaluation), done, 1.0) == first  # sent twice
    assert widths_that_count(session, study) == {8, 16, 32}
    numbers = [trial.number for trial in session.query(models.Trial).filter_by(study_id=study.id)]
    assert sorted(numbers) == [0, 1, 2, 3, 4]
