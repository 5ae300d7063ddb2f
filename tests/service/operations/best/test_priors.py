"""What a study learns from others: near shapes and older environments of its device model, else other models."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
from factories import CPU, H100, H200, OLD, T4
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.orm import joinedload

from tilewright.kernels.problem import octaves
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best.priors import FEWEST_TRIALS, OTHER_MODEL, guess, priors, winners
from tilewright.service.store import models

SHAPE = {"m": 1024, "n": 1024, "k": 1024}
TRIED = [Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}) for x in (32, 64, 128) for y in (1, 2, 4)]


def studied(rows, shape=SHAPE, *, trials=FEWEST_TRIALS, **of):
    study, problem, device = rows.study(shape, **of)
    job = rows.job(problem, device, study)
    for number in range(trials):
        rows.trial(study, job, TRIED[number], 2.0 + number)
    return study


def found(rows, study):
    kernel = registry.catalogue().get("gemm")
    loaded = rows.session.get_one(models.Study, study.id, options=[joinedload(models.Study.device_model)])
    return priors(rows.session, kernel, kernel.problem(SHAPE), loaded)


def test_the_most_similar_come_first_and_each_says_where_it_is_from(rows):
    mine = studied(rows, trials=0)
    older = studied(rows, environment=OLD)
    near = studied(rows, {**SHAPE, "m": 2048})
    learnt = found(rows, mine)
    assert [prior.source.split(",")[0] for prior in learnt] == ["older environment", "near shape"]
    assert [int(prior.source.split()[-1]) for prior in learnt] == [older.id, near.id]
    assert min(slowdown for _, slowdown in learnt[0].entries) == 1.0


def test_what_is_too_far_too_short_or_of_another_kind_of_device_is_left_out(rows):
    mine = studied(rows, trials=0)
    studied(rows, {"m": 1024, "n": 64, "k": 64})
    studied(rows, {**SHAPE, "n": 2048}, trials=FEWEST_TRIALS - 1)
    studied(rows, {**SHAPE, "n": 512}, options={"trans_b": True})
    studied(rows, {**SHAPE, "k": 512}, model=H200, environment=OLD)
    studied(rows, model=CPU)
    studied(rows, {**SHAPE, "k": 32}, model=H100)
    assert found(rows, mine) == []


def test_other_models_are_heard_where_the_own_one_has_nothing_the_most_similar_first(rows):
    mine = studied(rows, trials=0)
    far = studied(rows, {**SHAPE, "m": 4096}, model=H100)
    studied(rows, model=H100, environment=OLD)
    same = studied(rows, model=H100)  # of two environments the newer study
    learnt = found(rows, mine)
    assert [prior.source for prior in learnt] == [f"{H100.name}, study {same.id}", f"{H100.name}, study {far.id}"]
    assert [prior.similarity for prior in learnt] == [OTHER_MODEL, pytest.approx(OTHER_MODEL / math.sqrt(2))]
    near = studied(rows, {**SHAPE, "m": 2048})
    assert [prior.source for prior in found(rows, mine)] == [f"near shape, study {near.id}"]


def test_of_other_models_the_most_similar_two_are_heard(rows):
    mine = studied(rows, trials=0)
    small = replace(H100, slug="small", name="Small", limits=replace(H100.limits, multiprocessors=8))
    for model in (small, H100, T4):
        studied(rows, model=model)
    assert [prior.source.split(",")[0] for prior in found(rows, mine)] == [H100.name, T4.name]


def told(rows, study):
    """What the only prior of the study says of each configuration."""
    [prior] = found(rows, study)
    return dict(prior.entries)


def drop_in_finals(rows, study, configuration):
    job = rows.session.scalars(select(models.TuningJob).where(models.TuningJob.study_id == study.id)).one()
    job.result = {"dropped": [{"configuration": configuration.as_json(), "reason": "wrong result"}]}
    job.finished_at = func.now()
    rows.session.flush()


def retract_best_of(rows, study, configuration):
    best = rows.best(SHAPE, model=H100)  # moved to the study's trial
    trial = models.Trial
    its = select(trial).where(trial.study_id == study.id, trial.configuration == configuration.as_json())
    best.trial_id = rows.session.scalars(its).one().id
    best.retracted_at = func.now()
    rows.session.flush()


@pytest.mark.parametrize("bar", [drop_in_finals, retract_best_of])
@pytest.mark.parametrize("there", [{"environment": OLD}, {"shape": {**SHAPE, "m": 2048}}])
def test_what_is_barred_in_its_study_counts_as_failed_and_its_time_for_nothing(rows, bar, there):
    mine = studied(rows, trials=0)
    other = studied(rows, trials=FEWEST_TRIALS + 1, **there)
    assert told(rows, mine)[TRIED[1]] == 1.5
    bar(rows, other, TRIED[0])
    learnt = told(rows, mine)
    assert learnt[TRIED[0]] == math.inf
    assert (learnt[TRIED[1]], learnt[TRIED[2]]) == (1.0, pytest.approx(4 / 3))


def test_what_is_barred_is_none_of_the_trials_that_make_a_prior(rows):
    mine = studied(rows, trials=0)
    other = studied(rows, environment=OLD)
    assert len(found(rows, mine)) == 1
    drop_in_finals(rows, other, TRIED[0])
    assert found(rows, mine) == []


axes = st.integers(1, 2**20)


@given(axes, axes, axes, axes)
def test_distance_is_one_and_tells_a_row_from_a_column(a, b, c, d):
    one, other = {"m": a, "n": b}, {"m": c, "n": d}
    assert octaves(one, other) == pytest.approx(octaves(other, one))
    assert octaves(one, one) == 0
    assert octaves({"m": 1, "n": 4096}, {"m": 4096, "n": 1}) == 24


def starts(rows, study):
    """What a search of the study begins with."""
    kernel = registry.catalogue().get("gemm")
    loaded = rows.session.get_one(models.Study, study.id)
    return winners(rows.session, kernel, kernel.problem(SHAPE), loaded)


def test_winners_of_the_nearest_shapes_come_first_each_once_and_of_every_environment(rows):
    mine = studied(rows, trials=0)
    rows.best({**SHAPE, "m": 64}, configuration=TRIED[0])
    rows.best({**SHAPE, "m": 2048}, configuration=TRIED[1])
    rows.best({**SHAPE, "n": 64, "k": 64}, configuration=TRIED[1])
    rows.best(SHAPE, environment=OLD, configuration=TRIED[2])
    assert starts(rows, mine) == [TRIED[2], TRIED[1], TRIED[0]]


def test_what_was_retracted_or_won_elsewhere_is_nobodys_start(rows):
    mine = studied(rows, trials=0)
    rows.best({**SHAPE, "m": 2048}, model=H100, configuration=TRIED[0])
    rows.best({**SHAPE, "n": 512}, options={"trans_b": True}, configuration=TRIED[1])
    rows.best({**SHAPE, "k": 512}, configuration=TRIED[2]).retracted_at = func.now()
    rows.session.flush()
    assert starts(rows, mine) == []


@pytest.mark.parametrize("shape", [{"m": 1024, "n": 1024}, {**SHAPE, "batch": 8}])
def test_what_was_tuned_when_the_kernel_had_other_axes_teaches_nothing(rows, shape):
    mine = studied(rows, trials=0)
    near = {**SHAPE, "k": 512}
    other = studied(rows, near)
    rows.session.get_one(models.Problem, other.problem_id).shape = shape
    best = rows.best({**SHAPE, "k": 256}, configuration=TRIED[0])
    rows.session.get_one(models.Problem, best.problem_id).shape = {**shape, "m": 512}
    rows.session.flush()
    assert found(rows, mine) == []
    assert starts(rows, mine) == []


@pytest.mark.usefixtures("shipped_records")
@pytest.mark.parametrize("model", [H200, H100])  # of the latter there are none
def test_a_first_job_begins_with_what_shipped_records_predict(rows, model):
    device = rows.device(model)
    kernel = registry.catalogue().get("gemm")
    guessed = guess(lambda: nullcontext(rows.session), kernel, kernel.problem(SHAPE), device.uuid, None)
    assert guessed is not None
    assert guessed.variant == "tiled"
