"""A study's trials: column by column, how much parameters matter, and those that are tried again."""

from __future__ import annotations

import gzip
import json
import math
import random
import warnings

import numpy as np
import optuna
import pytest
from factories import NAIVE, TILED_16, TILED_32, Rows
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from tilewright.kernels.catalogue import catalogue
from tilewright.service.dashboard.charts.packed import packed
from tilewright.service.errors import ConflictError, NotFoundError
from tilewright.service.operations.jobs.record_trial import TrialContext, record_trial
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.studies.columns import Columns, columns
from tilewright.service.operations.studies.importance import LEAST_TRIALS, ParameterCounts, parameter_counts
from tilewright.service.operations.studies.retries import retry_trials
from tilewright.service.operations.studies.rows import prior_trials
from tilewright.service.store import models
from tilewright.tuner.loop.tune import Trial
from tilewright.tuner.outcome import Evaluation, Outcome, Timing


@pytest.fixture
def study_id(session):
    """A study of four trials: two of a variant, one of another, one that failed."""
    rows = Rows(session)
    study, problem, device = rows.study()
    job = rows.job(problem, device, study)
    for configuration, time_ms, outcome in (
        (TILED_16, 2.0, Outcome.MEASURED),
        (NAIVE, 9.0, Outcome.MEASURED),
        (TILED_32, None, Outcome.WRONG_RESULT),
        (TILED_16.of("tiled", {"TILE_WIDTH": 8}), 1 / 3, Outcome.MEASURED),
    ):
        trial = rows.trial(study, job, configuration, time_ms, outcome=outcome)
        trial.wall_s, trial.registers = 1.5, 64
    session.flush()
    return study.id


def read(found: bytes) -> dict[str, list]:
    """The columns in the bytes, as the browser reads them."""
    end = 4 + int.from_bytes(found[:4], "little")
    header, offset, read = json.loads(found[4:end]), end, {}
    for column in header["columns"]:
        kind = {"rising": "<u4", "number": "<f4", "place1": "<u1", "place2": "<u2"}[column["kind"]]
        values = np.frombuffer(found, kind, header["rows"], offset)
        offset += -(-values.nbytes // 4) * 4
        if column["kind"] == "rising":
            values = np.cumsum(values) * column["step"]
        read[column["name"]] = [column["values"][v] for v in values] if "values" in column else values.tolist()
    assert offset == len(found)
    return read


def test_bytes_hold_what_the_columns_say(session, study_id):
    found = columns(session, study_id, "tiled", ["TILE_WIDTH"], resources=["registers"])
    assert found.values["TILE_WIDTH"] == [16, None, 32, 8]
    shown = read(packed(found))
    assert shown["trial"] == [0, 1, 2, 3]
    assert shown["spent"] == pytest.approx([1.5, 3, 4.5, 6], abs=1e-4)
    assert shown["outcome"] == ["measured", "measured", "wrong_result", "measured"]
    assert shown["variant"] == ["tiled", "naive", "tiled", "tiled"]
    assert shown["TILE_WIDTH"] == [16, None, 32, 8]
    assert shown["registers"] == [64] * 4
    assert math.isnan(shown["time"].pop(2))
    assert shown["time"] == pytest.approx([2.0, 9.0, 1 / 3], rel=1e-5)


def test_only_what_was_added_since_and_nothing_is_fine_too(session, study_id):
    later = columns(session, study_id, "tiled", ["TILE_WIDTH"], after=1)
    assert later.numbers == (2, 3)
    assert list(later.spent_s) == [4.5, 6.0]
    assert read(packed(columns(session, study_id, "tiled", ["TILE_WIDTH"], after=3)))["trial"] == []


def test_twenty_thousand_trials_are_few_bytes():
    chance, count = random.Random(3), 20_000
    times = [math.exp(chance.gauss(0, 1)) for _ in range(count)]
    many = Columns(
        range(count),
        times,
        list(np.cumsum([chance.random() for _ in range(count)])),
        ["measured"] * count,
        ["tiled"] * count,
        {f"P{place}": [chance.choice([1, 2, 4, 8]) for _ in range(count)] for place in range(8)},
        {},
    )
    assert len(gzip.compress(packed(many), 5)) < 150_000


VALUES = {"TILE_WIDTH": [8, 16, 32], "OTHER": [1, 2, 4, 8], "LAST": [0, 1]}
WEIGHTS = {"TILE_WIDTH": 0.2, "OTHER": 0.05, "LAST": 0.01}


def measured(count):
    """So many configurations with times: small values are faster, and are tried more often."""
    chance = random.Random(7)
    for _ in range(count):
        values = {name: min(chance.choice(of), chance.choice(of)) for name, of in VALUES.items()}
        logs = sum(WEIGHTS[name] * VALUES[name].index(value) for name, value in values.items())
        yield values, 2.0 ** (logs + chance.gauss(0, 0.05))


def by_optuna(trials):
    """The shares that Optuna finds for the same trials."""
    lists = {name: CategoricalDistribution(of) for name, of in VALUES.items()}
    study = optuna.create_study()
    study.add_trials([create_trial(params=values, distributions=lists, value=time_ms) for values, time_ms in trials])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


@pytest.fixture
def add(session):
    """Adds trials with these times, and two that failed with values of their own; the id of their study."""

    def add(trials):
        rows = Rows(session)
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        for place, (values, time_ms) in enumerate(trials):
            trial = rows.trial(study, job, TILED_16.of("tiled", {"PLACE": place}), time_ms)
            trial.configuration = TILED_16.of("tiled", values).as_json()
        for width in (64, 65):
            failed = TILED_16.of("tiled", {**values, "TILE_WIDTH": width})
            rows.trial(study, job, failed, outcome=Outcome.TIMED_OUT)
        session.flush()
        return study.id

    return add


def test_shares_are_those_of_optuna_over_all_trials_and_add_to_one(session, add):
    trials = list(measured(300))
    counts = parameter_counts(session, add(trials), "tiled")
    assert counts.measured == 300
    expected = by_optuna(trials)
    shares = counts.shares()
    assert list(shares) == list(expected) == ["OTHER", "TILE_WIDTH", "LAST"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == pytest.approx(expected, rel=1e-6)


def test_values_of_failed_trials_are_known_and_do_not_count(session, add):
    counts = parameter_counts(session, add(list(measured(3))), "tiled")
    assert counts.values()["TILE_WIDTH"][-2:] == [64, 65]
    assert counts.by_value["TILE_WIDTH"][64] == (0, 0)
    assert parameter_counts(session, 0, "tiled") == ParameterCounts({}, 0)


def test_nothing_is_said_below_the_least_number_of_trials():
    by_value = {"A": {1: (LEAST_TRIALS - 6, 1), 2: (5, 4)}}
    assert ParameterCounts(by_value, LEAST_TRIALS - 1).shares() == {}
    assert ParameterCounts(by_value, LEAST_TRIALS).shares() == {"A": 1.0}
    assert ParameterCounts({"A": {1: (LEAST_TRIALS, 5)}}, LEAST_TRIALS).shares() == {}


def test_trials_that_no_parameter_decides_leave_the_order_open(session, add):
    few = parameter_counts(session, add(random_times(76)), "tiled").uncertainty()
    assert 10 < few.other_first < 90


def test_many_trials_settle_the_order():
    counts = ParameterCounts({"A": {1: (500, 90), 2: (500, 10)}, "B": {1: (500, 55), 2: (500, 45)}}, 1000)
    found = counts.uncertainty()
    assert found.other_first == 0
    low, high = found.intervals["A"]
    assert low < counts.shares()["A"] < high


def random_times(count):
    """Times that no parameter decides."""
    chance = random.Random(11)
    for _ in range(count):
        yield {name: chance.choice(of) for name, of in VALUES.items()}, chance.uniform(1, 2)


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
