"""What a study learns from others: near shapes and older environments of its device model; nothing else."""

import pytest
from factories import H100, H200, OLD
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import joinedload

from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.priors import FEWEST_TRIALS, distance, priors
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


def test_what_is_too_far_too_short_or_of_another_device_is_left_out(rows):
    mine = studied(rows, trials=0)
    studied(rows, {"m": 1024, "n": 64, "k": 64})
    studied(rows, {**SHAPE, "n": 2048}, trials=FEWEST_TRIALS - 1)
    studied(rows, {**SHAPE, "n": 512}, options={"trans_b": True})
    studied(rows, {**SHAPE, "k": 512}, model=H200, environment=OLD)
    studied(rows, model=H100)
    assert found(rows, mine) == []


axes = st.integers(1, 2**20)


@given(axes, axes, axes, axes)
def test_distance_is_one_and_tells_a_row_from_a_column(a, b, c, d):
    one, other = {"m": a, "n": b}, {"m": c, "n": d}
    assert distance(one, other) == pytest.approx(distance(other, one))
    assert distance(one, one) == 0
    assert distance({"m": 1, "n": 4096}, {"m": 4096, "n": 1}) == 24
