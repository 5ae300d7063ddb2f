import math
import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.model import NOISE, Smooth
from tilewright.tuner.predict.predictor import Predictor, work_of
from tilewright.tuner.predict.record import FEWEST_SHAPES, Record

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=140 * 2**30, max_shared_bytes=227 * 1024)
GEMM = catalogue().get("gemm")
VARIANTS = ("wpt", "tiled")


def problem_of(m, n, k):
    return GEMM.problem({"m": m, "n": n, "k": k})


def time_ms(problem, configuration):
    """A made device: blocks come in waves of one a multiprocessor, small tiles read more, odd sizes cost edges."""
    c, (m, n, k) = configuration.values, (problem.shape[axis] for axis in "mnk")
    tile_m, tile_n = (c.TILE_M, c.TILE_N) if configuration.variant == "wpt" else (c.TILE_WIDTH, c.TILE_WIDTH)
    sums = c.WPT_M * c.WPT_N if configuration.variant == "wpt" else 1
    blocks = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    waves = math.ceil(blocks / LIMITS.multiprocessors)
    return 0.003 + waves * 2e-8 * k * tile_m * tile_n * (1 + 4 / (4 + sums)) * (1 + 16 / min(tile_m, tile_n))


def random_shape(generator):
    return tuple(round(2 ** generator.uniform(5, 12)) for _ in range(3))


def record_of(shape, generator, count=60):
    problem = problem_of(*shape)
    feasible = GEMM.space(problem, LIMITS, VARIANTS).feasible
    chosen = {feasible[generator.randrange(len(feasible))] for _ in range(count)}
    return Record(problem, {c: time_ms(problem, c) for c in sorted(chosen)}, {})


@pytest.fixture(scope="module")
def records():
    generator = random.Random(5)
    return [record_of(random_shape(generator), generator) for _ in range(24)]


@pytest.fixture(scope="module")
def predictor(records):
    return Predictor(GEMM, LIMITS, records)


def loss_of(problem, configuration):
    space = GEMM.space(problem, LIMITS, VARIANTS)
    return time_ms(problem, configuration) / min(time_ms(problem, c) for c in space.feasible)


def test_predictions_are_feasible_and_beat_the_nearest_shapes_best(predictor, records):
    generator, predicted, nearest = random.Random(6), [], []
    for _ in range(12):
        problem = problem_of(*random_shape(generator))
        space = GEMM.space(problem, LIMITS, VARIANTS)
        found = predictor.predict(problem, space.__contains__)
        assert found.configuration in space
        predicted.append(loss_of(problem, found.configuration))
        by_distance = sorted(
            records,
            key=lambda r: sum(
                abs(math.log(a / b)) for (_, a), (_, b) in zip(r.problem.axes, problem.axes, strict=True)
            ),
        )
        nearest.append(loss_of(problem, next(r.ranked[0] for r in by_distance if r.ranked[0] in space)))
    assert np.log(predicted).mean() < np.log(nearest).mean()
    assert np.exp(np.log(predicted).mean()) < 1.15


def test_the_expected_loss_is_of_the_size_of_the_loss(predictor):
    generator, found = random.Random(7), []
    for _ in range(12):
        problem = problem_of(*random_shape(generator))
        space = GEMM.space(problem, LIMITS, VARIANTS)
        prediction = predictor.predict(problem, space.__contains__)
        found.append((prediction.expected_loss, loss_of(problem, prediction.configuration) - 1))
    expected, real = np.mean(found, axis=0)
    assert 0 < expected < 0.5
    assert real / 4 < expected < max(4 * real, 0.1)


def persistent_ms(problem, configuration):
    """A made device on which 132 blocks take tiles in turns, so that only whole rounds of tiles count."""
    c, (m, n, k) = configuration.values, (problem.shape[axis] for axis in "mnk")
    rows = 64 * c.BLOCKS_R * c.CONSUMERS
    tile_m, tile_n = (c.TILE_S, rows) if c.SHARED_A else (rows, c.TILE_S)
    rounds = math.ceil(math.ceil(m / tile_m) * math.ceil(n / tile_n) * c.SPLIT_K / 132)
    return 0.003 + rounds * 2e-8 * k / c.SPLIT_K * tile_m * tile_n * (1 + 32 / min(tile_m, tile_n))


def test_rounds_of_tiles_are_foreseen_where_the_grid_is_always_the_same():
    def problem_and_space():
        problem = problem_of(*(round(2 ** generator.uniform(8, 12)) for _ in range(3)))
        return problem, GEMM.space(problem, LIMITS, ["tensor3xtf32_sm90"])

    generator, tuned, losses = random.Random(5), [], []
    for _ in range(24):
        problem, space = problem_and_space()
        chosen = {space.feasible[generator.randrange(len(space))] for _ in range(40)}
        tuned.append(Record(problem, {c: persistent_ms(problem, c) for c in sorted(chosen)}, {}))
    predictor = Predictor(GEMM, LIMITS, tuned)
    for _ in range(12):
        problem, space = problem_and_space()
        found = predictor.predict(problem, space.__contains__)
        best_ms = min(persistent_ms(problem, c) for c in space.feasible)
        losses.append(persistent_ms(problem, found.configuration) / best_ms)
    assert np.exp(np.log(losses).mean()) < 1.08


def test_every_tuned_shape_has_a_loss_from_the_others(predictor, records):
    assert list(predictor.losses) == [r.problem for r in records]
    assert all(loss >= 0 for loss in predictor.losses.values())


def test_the_same_records_give_the_same_prediction(records):
    problem = problem_of(500, 600, 700)
    first, second = (Predictor(GEMM, LIMITS, records[:8]).predict(problem, lambda _c: True) for _ in range(2))
    assert first == second


def test_it_names_the_nearest_problem_that_its_configuration_was_measured_for(predictor, records):
    prediction = predictor.predict(records[3].problem, records[3].times_ms.__contains__)
    assert prediction.near == records[3].problem
    assert prediction.time_ms == pytest.approx(records[3].times_ms[prediction.configuration], rel=0.5)


@pytest.mark.parametrize("shape", [(700, 900, 300), (64, 2000, 500), (3000, 100, 1000)])
def test_where_little_of_what_was_tried_fits_what_nobody_tried_is_found(predictor, records, shape):
    problem = problem_of(*shape)
    space = GEMM.space(problem, LIMITS, VARIANTS)
    tried = {c for record in records for c in record.times_ms}
    only = max((r.ranked[0] for r in records if r.ranked[0] in space), key=lambda c: time_ms(problem, c))
    found = predictor.predict(problem, lambda c: c == only or (c in space and c not in tried))
    assert found.configuration not in tried
    assert time_ms(problem, found.configuration) < 0.8 * time_ms(problem, only)
    nearest = min(records, key=lambda r: sum(abs(np.log(np.divide(tuple(r.problem.stated_shape.values()), shape)))))
    assert found.near == nearest.problem


def test_batches_are_predicted_from_batches_and_single_products():
    def record(batch, m):
        problem = GEMM.problem({"m": m, "n": m, "k": 64, "batch": batch})
        configurations = [c for c in GEMM.space(problem, LIMITS, ["tiled", "naive"]).feasible if c.items]
        work = GEMM.flops(problem) * 1e-9
        return Record(problem, {c: work * (64 / c.values.get("TILE_WIDTH", 2)) for c in configurations}, {})

    records = [record(batch, m) for batch in (1, 4, 16, 64) for m in (32, 96)]
    predictor = Predictor(GEMM, LIMITS, records)
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64, "batch": 32})
    found = predictor.predict(problem, GEMM.space(problem, LIMITS, ["tiled", "naive"]).__contains__)
    assert found.configuration == Configuration.of("tiled", {"TILE_WIDTH": 32})
    assert found.time_ms == pytest.approx(2 * GEMM.flops(problem) * 1e-9, rel=0.3)
    assert found.near.shape["batch"] in {16, 64}
    alone = predictor.predict(GEMM.problem({"m": 64, "n": 64, "k": 64}), lambda c: c.variant == "tiled")
    assert alone.near.shape["batch"] == 1


def test_what_failed_for_one_problem_is_predicted_for_none(predictor, records):
    problem = problem_of(700, 900, 300)
    space, barred = GEMM.space(problem, LIMITS, VARIANTS), set()
    for _ in range(3):
        again = Predictor(GEMM, LIMITS, [*records[:-1], replace(records[-1], failed=frozenset(barred))])
        chosen = again.predict(problem, space.__contains__).configuration
        assert chosen not in barred
        barred.add(chosen)
    everything = replace(records[0], times_ms={}, failed=frozenset(space.feasible))
    assert Predictor(GEMM, LIMITS, [*records, everything]).predict(problem, space.__contains__) is None


def test_no_rate_is_promised_that_no_tuned_shape_has_reached():
    generator = random.Random(8)
    small = [tuple(round(2 ** generator.uniform(5, 9)) for _ in range(3)) for _ in range(12)]
    records = [record_of(shape, generator) for shape in small]  # where launches weigh, rates rise steeply with size
    highest = max(work_of(GEMM, r.problem) / r.best_ms for r in records)
    problem = problem_of(4096, 4096, 4096)
    found = Predictor(GEMM, LIMITS, records).predict(problem, GEMM.space(problem, LIMITS, VARIANTS).__contains__)
    assert work_of(GEMM, problem) / found.time_ms <= highest * (1 + 1e-9)


def test_nothing_admitted_is_nothing_predicted(predictor):
    assert predictor.predict(problem_of(64, 64, 64), lambda _c: False) is None


def test_too_few_shapes_are_refused(records):
    with pytest.raises(ValueError, match="too few"):
        Predictor(GEMM, LIMITS, records[: FEWEST_SHAPES - 1])


def test_a_sample_of_a_record_keeps_the_fast_half_and_some_of_the_rest(records):
    sample = records[0].sample(10)
    assert len(sample) == len(set(sample)) == 10
    assert sample[:5] == list(records[0].ranked[:5])
    assert records[0].sample(1000) == list(records[0].ranked)


def test_left_out_rows_are_predicted_as_by_a_fit_without_them():
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(60, 4))
    values = np.sin(rows[:, 0]) + rows[:, 1] ** 2 + 0.1 * generator.normal(size=60)
    model = Smooth.fit(rows, values)
    held, kept = slice(0, 12), slice(12, None)
    without = Smooth._through(model.level, model.mean, model.scale, model.terms, rows[kept], values[kept])
    expected, deviation = model.without(rows[held], values[held])
    again, deviation_again = without(rows[held])
    np.testing.assert_allclose(expected, again, rtol=1e-3, atol=1e-3)  # in single precision; noise is more
    np.testing.assert_allclose(deviation, deviation_again, rtol=1e-4, atol=1e-6)
    assert (deviation > 0).all()


def test_a_sum_of_functions_of_few_features_is_learnt_from_fewer_rows():
    generator = np.random.default_rng(5)

    def made(rows):
        return np.sin(rows[:, 0]) * rows[:, 1] + np.cos(rows[:, 2])

    rows, others = generator.normal(size=(400, 12)), generator.normal(size=(200, 12))
    values = made(rows) + 0.1 * generator.normal(size=400)
    groups = [[0, 1], [2, 3], list(range(12))]
    errors = [
        np.sqrt(np.mean((model(others)[0] - made(others)) ** 2))
        for model in (Smooth.fit(rows, values), Smooth.fit(rows, values, groups=groups))
    ]
    assert errors[1] < 0.6 * errors[0]


def test_a_feature_that_never_changes_counts_for_nothing():
    rows = np.column_stack([np.linspace(-1, 1, 40), np.full(40, 7.0)])
    model = Smooth.fit(rows, 3 * rows[:, 0])
    value, _ = model(np.array([[0.5, 7.0]]))
    assert value[0] == pytest.approx(1.5, abs=0.05)


def test_a_feature_that_hardly_changes_does_not_lead():
    is_wide = np.arange(40) % 2
    model = Smooth.fit(np.column_stack([is_wide, 0.03 * is_wide]), 0.3 * is_wide)
    value, _ = model(np.array([[0.0, 0.03]]))
    assert value[0] == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize(("times", "is_faster"), [(100.0, False), (0.5, True)])
def test_a_library_is_called_faster_only_where_it_may_be(records, times, is_faster):
    timed = [replace(record, library=LibraryTime("made", times * record.best_ms)) for record in records]
    problem = problem_of(512, 512, 512)
    space = GEMM.space(problem, LIMITS, VARIANTS)
    found = Predictor(GEMM, LIMITS, timed).predict(problem, lambda c: c in space)
    assert found.library.name == "made"
    assert times / 2 < found.library.time_ms / found.time_ms < 2 * times
    assert found.is_library_faster is is_faster


def test_nothing_is_left_to_the_library_where_a_search_often_gained_on_it(records):
    """Slower than the library as expected, but a search beat it at every fourth shape."""
    timed = [
        replace(record, library=LibraryTime("made", (1.3 if i % 4 == 0 else 0.5) * record.best_ms))
        for i, record in enumerate(records)
    ]
    found = Predictor(GEMM, LIMITS, timed).predict(problem_of(512, 512, 512), admits(problem_of(512, 512, 512)))
    assert found.library.time_ms < found.time_ms
    assert not found.is_library_faster


def test_a_library_that_is_always_as_far_behind_is_so_far_behind_beyond_the_tuned_shapes(records):
    timed = [replace(record, library=LibraryTime("made", 3 * record.best_ms)) for record in records]
    problem = problem_of(16384, 16384, 16384)
    found = Predictor(GEMM, LIMITS, timed).predict(problem, admits(problem))
    assert found.library.time_ms / found.time_ms == pytest.approx(3, rel=0.4)


def test_every_variant_that_was_measured_anywhere_is_a_candidate(records):
    predictor = Predictor(GEMM, LIMITS, records)
    candidates = predictor._candidates(list(range(len(records))))
    assert {c.variant for c in candidates} == {c.variant for record in records for c in record.times_ms}


def test_deviations_in_single_precision_are_those_of_the_whole_matrix():
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(900, 12))
    model = Smooth.fit(rows, np.sin(rows).sum(axis=1), groups=[range(6), range(12)])
    asked = np.concatenate([rows[:50], generator.normal(scale=3.0, size=(50, 12))])
    basis = model.basis(asked)
    exact = np.sqrt(NOISE * ((basis @ model.inverse) * basis).sum(axis=1))
    assert model(asked)[1] == pytest.approx(exact, rel=1e-4)


def admits(problem):
    return GEMM.space(problem, LIMITS, VARIANTS).__contains__


def test_what_is_left_out_for_its_value_would_not_have_been_chosen(predictor, monkeypatch):
    """Deviations are found of those alone that may be chosen or changed."""
    generator = random.Random(17)
    problems = [problem_of(*random_shape(generator)) for _ in range(12)]
    quick = [predictor.predict(problem, admits(problem)) for problem in problems]

    def all_of_them(self, problem, configurations, _least):
        values, deviations = self._model(self._features.rows(problem, configurations))
        return {c: (v + d, v) for c, v, d in zip(configurations, values.tolist(), deviations.tolist(), strict=True)}

    monkeypatch.setattr(Predictor, "_expected", all_of_them)
    assert [predictor.predict(problem, admits(problem)) for problem in problems] == quick


def test_a_rough_prediction_says_the_same_of_the_loss_and_whether_there_is_one(predictor):
    problem = problem_of(700, 900, 300)
    rough = predictor.predict(problem, admits(problem), is_rough=True)
    whole = predictor.predict(problem, admits(problem))
    assert (rough.expected_loss, rough.library) == (whole.expected_loss, whole.library)
    assert rough.configuration in GEMM.space(problem, LIMITS, VARIANTS)
    assert predictor.predict(problem, lambda _: False, is_rough=True) is None
