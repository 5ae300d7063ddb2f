"""Searches with a model, the Gaussian process among them."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, SearchSpace, VariantSpace, choice
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.search import surrogate
from tilewright.tuner.search.features import Features
from tilewright.tuner.search.gaussian import FEWEST, NEAR_EVERY, NEAR_FROM, NEAR_FROM_WITH_PRIORS, PriorTrend
from tilewright.tuner.search.modelled import log_expected_improvement
from tilewright.tuner.search.samplers import make_searcher
from tilewright.tuner.search.searcher import Prior
from tilewright.tuner.search.surrogate import LENGTH, NOISE, Scales, Surrogate, Trends, fit

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=1, memory_bytes=1 << 30)
SPACE = SearchSpace(
    (
        VariantSpace("wide", (choice("TILE", 16, 32, 64), choice("BLOCK", *range(16, 272, 16)), choice("PAD", 0, 1))),
        VariantSpace("small", (choice("TILE", 8, 16), choice("ONLY", 3))),
    ),
    Problem("made", (("n", 64),), "float32", ()),
    LIMITS,
)
RNG = np.random.default_rng(5)
POINTS = RNG.random((60, 4))
LOSSES = np.clip(np.abs(POINTS[:, 0] - 0.4) + 0.3 * POINTS[:, 1], 0, 1)
SCALES = Scales(np.array([-1.0, 0.2, 1.5, 0.0]), math.log(0.02))


def constant(observed, here):
    return Trends(
        np.ones((observed, 1)),
        np.ones((here, 1), dtype=np.float32),
        np.zeros((here, 1), dtype=np.float32),
        np.array([1e-3]),
        np.zeros(1),
    )


def test_features_of_all_are_the_features_of_each():
    features = Features(SPACE)
    assert np.allclose(features.of_all(), [features.of(c) for c in SPACE.feasible], atol=1e-6)
    assert [(c.parameter, c.scale) for c in features.columns] == [
        ("TILE", "log"),
        ("BLOCK", "log"),
        ("BLOCK", "divisibility"),
        ("PAD", "linear"),
    ]


def test_features_span_zero_to_one_and_know_the_threads_of_a_warp():
    features = Features(SPACE)
    tile, block, divisibility, pad, *_ = features.of_all()[: len(SPACE.ranks["wide"])].T
    assert (block.min(), block.max(), pad.min(), pad.max()) == (0, 1, 0, 1)
    assert tile.min() == pytest.approx(1 / 3)  # the other variant has a smaller one
    blocks = np.array([c.values["BLOCK"] for c in SPACE.feasible[: len(block)]])
    assert set(blocks[divisibility == 1]) == {b for b in range(16, 272, 16) if b % 32 == 0}


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_configuration_of_another_space_stays_near_the_edge(tile, block):
    row = Features(SPACE).of(Configuration.of("wide", {"TILE": tile, "BLOCK": block, "PAD": 0, "NEW": 7}))
    assert ((row >= -0.25) & (row <= 1.25)).all()


def test_trials_taken_one_by_one_predict_the_same_as_all_at_once():
    here = RNG.random((50, 4)).astype(np.float32)
    whole, stepwise = Surrogate(here, 60), Surrogate(here, 60)
    whole.rebuild(POINTS, SCALES)
    stepwise.rebuild(POINTS[:10], SCALES)
    for point in POINTS[10:]:
        stepwise.add(point)
    for a, b in zip(*(s.predict(LOSSES, constant(60, 50)) for s in (whole, stepwise)), strict=True):
        assert np.allclose(a, b, atol=2e-3)


def test_the_prediction_is_that_of_the_textbook():
    here = RNG.random((20, 4)).astype(np.float32)
    model = Surrogate(here, 60)
    model.rebuild(POINTS, SCALES)
    mean, _ = model.predict(LOSSES, constant(60, 20))

    def covariance(a, b):
        r = np.sqrt(5) * np.linalg.norm((a[:, None] - b[None]) / np.exp(SCALES.lengths), axis=2)
        return (1 + r + r**2 / 3) * np.exp(-r)

    weights = np.linalg.inv(covariance(POINTS, POINTS) + 0.02 * np.eye(60))
    centre = weights.sum(axis=0) @ LOSSES / (weights.sum() + 1e-3)
    assert np.allclose(mean, centre + covariance(here, POINTS) @ weights @ (LOSSES - centre), atol=2e-3)


def test_what_is_not_known_is_filled_in_as_the_rest_predicts_and_changes_no_mean():
    is_known = np.arange(60) % 3 > 0
    here = POINTS[~is_known].astype(np.float32)
    whole, known = Surrogate(here, 60), Surrogate(here, 60)
    whole.rebuild(POINTS, SCALES)
    known.rebuild(POINTS[is_known], SCALES)
    filled = whole.filled_in(np.where(is_known, LOSSES, 0.9), is_known, constant(60, 20))
    mean, _ = known.predict(LOSSES[is_known], constant(40, 20))
    assert np.allclose(filled[~is_known], mean, atol=2e-3)
    assert (filled[is_known] == LOSSES[is_known]).all()
    assert np.allclose(whole.predict(filled, constant(60, 20))[0], mean, atol=2e-3)
    nothing = np.zeros(60, dtype=bool)
    assert (whole.filled_in(LOSSES, nothing, constant(60, 20)) == LOSSES).all()


def test_a_prior_that_says_the_opposite_counts_as_if_it_were_not_there():
    here = RNG.random((20, 4)).astype(np.float32)
    model = Surrogate(here, 60)
    model.rebuild(POINTS, SCALES)

    def opposite(points):
        return 1 - np.abs(points[:, 0] - 0.4) - 0.3 * points[:, 1]

    trends = Trends(
        np.column_stack([np.ones(60), opposite(POINTS)]),
        np.column_stack([np.ones(20), opposite(here)]).astype(np.float32),
        np.full((20, 2), [0.0, 0.1], dtype=np.float32),
        np.array([1e-3, 0.3]),
        np.array([0.0, 0.8]),
    )
    for with_it, without in zip(
        model.predict(LOSSES, trends), model.predict(LOSSES, trends.without_priors()), strict=True
    ):
        assert np.array_equal(with_it, without)


def test_the_gradient_of_the_fit_is_the_slope_of_its_loss():
    squares = ((POINTS[:, None] - POINTS[None]) ** 2).reshape(-1, 4)
    theta, expected = np.array([-0.5, 0.3, 0.9, 0.1, NOISE]), np.full(4, LENGTH)
    _, gradient = surrogate._loss(theta, squares, LOSSES, expected)
    for i, slope in enumerate(gradient):
        step = 1e-5 * np.eye(5)[i]
        ends = [surrogate._loss(theta + sign * step, squares, LOSSES, expected)[0] for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_the_fit_finds_which_features_matter():
    scales = fit(POINTS, LOSSES, Scales(np.full(4, LENGTH)), np.full(4, LENGTH))
    assert max(scales.lengths[:2]) < min(scales.lengths[2:])


@given(st.floats(-8, 3), st.floats(0.01, 2.0))
@settings(max_examples=200)
def test_expected_improvement_is_accurate_into_the_far_tail(u, deviation):
    mean = np.array([-u * deviation], dtype=np.float32)
    found = log_expected_improvement(mean, np.array([deviation], dtype=np.float32))[0]
    exact = math.exp(-u * u / 2) / math.sqrt(2 * math.pi) + u * 0.5 * math.erfc(-u / math.sqrt(2))
    assert found == pytest.approx(math.log(deviation) + math.log(exact), abs=0.06)


def space_of(*sizes):
    parameters = tuple(choice(f"P{place}", *range(1, size + 1)) for place, size in enumerate(sizes))
    return SearchSpace((VariantSpace("only", parameters),), Problem("made", (("n", 64),), "float32", ()), LIMITS)


def proposals(space, trials, seed, priors=()):
    """Each proposal of a search over times without any order, with the best configuration known when it was made."""
    generator, searcher = random.Random(seed), make_searcher("gp", space, [], seed, priors=priors)
    times_ms = {}
    for _ in range(trials):
        proposal = searcher.propose()
        yield proposal, min(times_ms, key=times_ms.get, default=None)
        times_ms[proposal] = 1 + generator.random()
        timing = Timing(times_ms[proposal], 0.0, (times_ms[proposal],), "warm")
        searcher.tell(proposal, Evaluation(Outcome.MEASURED, warm=timing))


def changed(one, other):
    return sum(a != b for a, b in zip(one.items, other.items, strict=True))


def test_every_fourth_proposal_changes_one_parameter_of_the_best_so_far():
    apart = [changed(p, best) if best else None for p, best in proposals(space_of(9, 9, 9), 64, seed=3)]
    assert set(apart[NEAR_FROM + NEAR_EVERY - 1 :: NEAR_EVERY]) == {1}
    assert set(apart[NEAR_FROM::NEAR_EVERY]) - {1}  # others go where they like


def test_with_a_prior_that_begins_later():
    space = space_of(9, 9, 9)
    search = proposals(space, NEAR_FROM_WITH_PRIORS + 24, seed=3, priors=[prior_of(space.feasible[::3])])
    apart = [changed(p, best) if best else None for p, best in search]
    assert set(apart[NEAR_FROM + NEAR_EVERY - 1 : NEAR_FROM_WITH_PRIORS : NEAR_EVERY]) - {1}
    assert set(apart[NEAR_FROM_WITH_PRIORS + NEAR_EVERY - 1 :: NEAR_EVERY]) == {1}


def test_a_best_whose_neighbours_were_all_tried_holds_nobody_up():
    found = [proposal for proposal, _ in proposals(space_of(4, 4, 3), 48, seed=5)]
    assert len(set(found)) == 48


def prior_of(configurations):
    return Prior("elsewhere", [(c, 1.0 + 0.1 * sum(c.values.values())) for c in configurations])


def test_a_record_that_left_a_parameter_as_it_was_is_narrow():
    space = space_of(6, 6, 6)
    features = Features(space)
    whole = random.Random(2).sample(list(space.feasible), 60)
    assert not PriorTrend(prior_of(whole), features).is_narrow
    assert PriorTrend(prior_of([c for c in whole if c.values["P1"] == 4]), features).is_narrow
    # What has one value here, or is another variant's, could not vary.
    assert not PriorTrend(prior_of(whole), Features(space_of(6, 1, 6))).is_narrow


@pytest.mark.in_turn(2)
def test_a_narrow_record_is_heard_less():
    space = space_of(9, 9, 9)
    corner = [c for c in space.feasible if c.values["P1"] == 1]

    def tried_near_the_best_of(entries):
        found = [p for seed in range(8) for p, _ in proposals(space, 24, seed, [prior_of(entries)])]
        return sum(sum(p.values.values()) <= 9 for p in found)

    assert 1.8 * tried_near_the_best_of(corner) < tried_near_the_best_of(space.feasible[::3])


def test_as_many_entries_as_are_asked_for_predict_and_one_fewer_do_not():
    space = space_of(6, 6, 6)
    known = list(space.feasible[: FEWEST + 1])
    assert PriorTrend(prior_of(known[:FEWEST]), Features(space)).usable
    assert not PriorTrend(prior_of(known[: FEWEST - 1]), Features(space)).usable
