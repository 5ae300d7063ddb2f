"""How much parameters matter: over all trials, as Optuna's PED-ANOVA says it."""

import random
import warnings

import optuna
import pytest
from factories import TILED_16, Rows
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from tilewright.service.operations.studies.importance import LEAST_TRIALS, ParameterCounts, parameter_counts
from tilewright.tuner.outcome import Outcome

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
