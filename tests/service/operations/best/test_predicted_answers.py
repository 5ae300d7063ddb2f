"""find_best for shapes that nobody tuned, once there are enough that somebody did."""

import pytest
from factories import H100, LIMITS, OLD
from found import find_best, find_best_batch
from sqlalchemy import event, func, select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.records import _trials
from tilewright.service.operations.best.retractions import retract
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

GEMM = catalogue().get("gemm")
WIDTHS = {"TILE_WIDTH": (4, 8, 16, 24, 32)}
TRIED = [
    *(Configuration.of("tiled", {"TILE_WIDTH": width}) for width in WIDTHS["TILE_WIDTH"]),
    *(Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}) for x in (16, 32, 64) for y in (2, 4, 8)),
]
SHAPES = [(256, 256, 256), (512, 256, 512), (1024, 512, 256), (1024, 1024, 1024), (2048, 512, 512)]
ASKED = {"m": 700, "n": 600, "k": 500}


def shape_of(m, n, k):
    return {"m": m, "n": n, "k": k}


def time_ms(shape, configuration):
    """Faster the wider the tile, slower the larger the problem; naive is slow."""
    work = shape["m"] * shape["n"] * shape["k"] * 1e-9
    return work * (64 / configuration.values["TILE_WIDTH"] if configuration.variant == "tiled" else 40)


@pytest.fixture
def tune(rows):
    """Stores a study of a shape with every trial of TRIED, and its best."""

    def tune(shape, **of):
        source = of.pop("source", None)
        ranked = sorted(TRIED, key=lambda c: time_ms(shape, c))
        best = rows.best(shape, time_ms(shape, ranked[0]), configuration=ranked[0], source=source, **of)
        trial = rows.trial_of(best)
        study = rows.session.get_one(models.Study, trial.study_id)
        job = rows.session.get_one(models.TuningJob, trial.job_id)
        for configuration in ranked[1:]:
            rows.trial(study, job, configuration, time_ms(shape, configuration), source=source)
        return best

    return tune


def ask(rows, shape=None, **more):
    return find_best(rows.session, "gemm", "nvidia-h200", shape or ASKED, **more)


def test_the_fourth_tuned_shape_makes_answers_predicted(rows, tune):
    for place, shape in enumerate(SHAPES[:4]):
        tune(shape_of(*shape))
        assert ask(rows).match == ("predicted" if place == 3 else "nearest")


def test_a_predicted_answer_says_what_to_expect_and_where_it_comes_from(rows, tune):
    for shape in SHAPES:
        tune(shape_of(*shape))
    found = ask(rows)
    expected_ms = time_ms(ASKED, Configuration.of("tiled", {"TILE_WIDTH": 32}))
    assert (found.match, found.variant, found.configuration) == ("predicted", "tiled", {"TILE_WIDTH": 32})
    assert found.time_ms == pytest.approx(expected_ms, rel=0.3)
    assert 0 <= found.expected_loss < 0.3
    assert found.gflops == pytest.approx(2 * 700 * 600 * 500 / found.time_ms / 1e6)
    assert found.problem.shape == ASKED
    assert tuple(found.tuned_problem.shape.values()) in SHAPES
    assert (found.verified_at, found.environment, found.library, found.ci_ms) == (None, None, None, None)
    assert found.improvable
    assert found.launch.grid == (22 * 19, 1, 1)
    assert "-DSHAPE_M=700" in found.flags


def test_a_prediction_names_the_origins_of_imported_results_that_it_rests_on(rows, tune):
    for shape in SHAPES[:3]:
        tune(shape_of(*shape))
    best = tune(shape_of(*SHAPES[3]), environment=OLD)
    rows.session.get_one(models.Environment, best.environment_id).origin = "lab-7"
    rows.session.flush()
    found = ask(rows)
    assert (found.match, found.environment, found.origins) == ("predicted", None, ["lab-7"])
    assert ask(rows, shape_of(*SHAPES[3])).origins == ["lab-7"]
    assert ask(rows, shape_of(*SHAPES[0])).origins == []


def test_an_exact_answer_is_never_predicted(rows, tune):
    for shape in SHAPES:
        tune(shape_of(*shape))
    assert ask(rows, shape_of(*SHAPES[0])).match == "exact"


def test_another_tuned_shape_is_learnt_from_at_once_and_nothing_is_fitted_twice(rows, tune):
    for shape in SHAPES:
        tune(shape_of(*shape))
    ask(rows)
    fitted = count_fits(rows)
    first = ask(rows)
    ask(rows, {"m": 701, "n": 600, "k": 500})
    assert fitted == []
    tune({"m": 690, "n": 610, "k": 510})
    second = ask(rows)
    assert len(fitted) == 1
    assert (first.match, second.match) == ("predicted", "predicted")
    assert second.tuned_problem.shape == {"m": 690, "n": 610, "k": 510}


def count_fits(rows):
    """A list that grows with each reading of measured trials, which a fit begins with."""
    seen = []

    def listen(_connection, _cursor, text, *_more):
        if text.startswith("SELECT trials.study_id, trials.configuration, trials.time_ms"):
            seen.append(text)

    event.listen(rows.session.get_bind(), "before_cursor_execute", listen)
    return seen


def test_trials_are_read_in_the_order_in_which_they_were_made(rows, tune):
    best = tune(shape_of(*SHAPES[0]))
    trials = select(models.Trial).where(models.Trial.study_id == rows.trial_of(best).study_id).order_by(models.Trial.id)
    made = [Configuration.from_json(trial.configuration) for trial in rows.session.scalars(trials)]
    first = rows.session.scalars(trials).first()
    rows.session.execute(update(models.Trial).where(models.Trial.id == first.id).values(registers=first.registers))
    read = _trials(rows.session, catalogue().get("gemm"), {first.study_id})[first.study_id]
    assert list(read.times_ms) == [configuration for configuration in made if configuration in read.times_ms]


def test_few_trials_a_shape_are_no_ground_for_predictions(rows):
    for shape in SHAPES:
        rows.best(shape_of(*shape))
    assert ask(rows).match == "nearest"


def test_trials_of_other_sources_are_no_ground_for_predictions(rows, tune):
    for shape in SHAPES[:3]:
        tune(shape_of(*shape))
    rows.best(shape_of(*SHAPES[3]), source="an older text")
    assert ask(rows).match == "nearest"


def test_other_models_dtypes_and_options_are_no_ground_for_predictions(rows, tune):
    rows.device()
    for shape in SHAPES[:2]:
        tune(shape_of(*shape), model=H100)
        tune(shape_of(*shape), options={"trans_a": True})
        tune(shape_of(*shape), dtype="float64")
    assert ask(rows).match == "transferred"


def test_what_fell_in_the_finals_is_not_proposed(rows, tune):
    wide = Configuration.of("tiled", {"TILE_WIDTH": 32})
    for shape in SHAPES:
        best = tune(shape_of(*shape))
        job = rows.session.get_one(models.TuningJob, best.job_id)
        job.result = {"dropped": [{"configuration": wide.as_json(), "reason": "wrong"}]}
        job.finished_at = func.now()
    rows.session.flush()
    assert ask(rows).configuration == {"TILE_WIDTH": 24}


def test_what_was_retracted_everywhere_is_not_proposed_although_others_stand_in(rows, tune):
    retracted = [tune(shape_of(*shape)) for shape in SHAPES]
    for best in retracted:
        retract(rows.session, best.id, "wrong")
    assert ask(rows, shape_of(*SHAPES[0])).configuration == {"TILE_WIDTH": 24}  # a stand-in
    found = ask(rows)
    assert (found.match, found.configuration) == ("predicted", {"TILE_WIDTH": 24})


def supersede(rows, best, configuration):
    """Puts the best of the same study in its place that this trial of it would be."""
    trial = models.Trial
    at = rows.trial_of(best).study_id
    tried = rows.session.scalars(select(trial).where(trial.study_id == at)).all()
    better = next(row for row in tried if row.configuration == configuration.as_json())
    named = ("problem_id", "device_model_id", "environment_id", "job_id", "l2", "gflops", "gb_per_s")
    best.superseded_by_id = rows.session.scalar(select(func.nextval("best_configurations_id_seq")))
    rows.session.flush()
    times = dict.fromkeys(("time_ms", "ci_low_ms", "ci_high_ms"), better.time_ms)
    copied = {name: getattr(best, name) for name in named}
    rows.session.add(models.BestConfiguration(id=best.superseded_by_id, trial_id=better.id, **copied, **times))
    rows.session.flush()


def test_what_was_superseded_before_it_was_retracted_is_not_predicted_from_either(rows, tune):
    superseded = [tune(shape_of(*shape)) for shape in SHAPES]
    for best in superseded:
        supersede(rows, best, Configuration.of("tiled", {"TILE_WIDTH": 24}))
    assert ask(rows).configuration == {"TILE_WIDTH": 32}  # which every study has a trial of
    for best in superseded:
        retract(rows.session, best.id, "wrong")
    found = ask(rows)
    assert (found.match, found.configuration) == ("predicted", {"TILE_WIDTH": 24})


def test_a_configuration_that_was_only_tried_where_it_failed_is_no_candidate(rows, tune):
    for shape in SHAPES:
        best = tune(shape_of(*shape))
        trial = rows.trial_of(best)
        trial.outcome, trial.time_ms = Outcome.TIMED_OUT, None
    rows.session.flush()
    assert ask(rows).configuration == {"TILE_WIDTH": 24}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "outcome", [o for o in Outcome if o not in {Outcome.MEASURED, Outcome.CONSTRAINT_VIOLATED}], ids=str
)
def test_what_failed_for_one_shape_is_proposed_for_none(rows, tune, outcome):
    wide = Configuration.of("tiled", {"TILE_WIDTH": 32})
    for shape in SHAPES:
        tune(shape_of(*shape))
    assert ask(rows).configuration == dict(wide.items)
    best = tune(shape_of(600, 600, 600))
    trial = rows.trial_of(best)
    trial.outcome, trial.time_ms = outcome, None
    rows.session.flush()
    assert ask(rows).configuration == {"TILE_WIDTH": 24}


def test_what_did_not_fit_one_shape_may_fit_another(rows, tune):
    for shape in SHAPES:
        tune(shape_of(*shape))
    trial = rows.trial_of(tune(shape_of(600, 600, 600)))
    trial.outcome, trial.time_ms = Outcome.CONSTRAINT_VIOLATED, None
    rows.session.flush()
    assert ask(rows).configuration == {"TILE_WIDTH": 32}


def test_a_batch_is_predicted_shape_by_shape(rows, tune):
    for shape in SHAPES:
        tune(shape_of(*shape))
    shapes = [ASKED, shape_of(*SHAPES[1]), {"m": 33, "n": 300, "k": 1000}, ASKED]
    found = find_best_batch(rows.session, "gemm", "nvidia-h200", shapes)
    assert [answer.match for answer in found] == ["predicted", "exact", "predicted", "predicted"]
    assert found[0] == found[3]
    for answer in found:
        problem = GEMM.problem(answer.problem.shape)
        assert Configuration.of(answer.variant, answer.configuration) in GEMM.space(problem, LIMITS)
