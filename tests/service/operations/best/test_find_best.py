"""find_best: which stored result answers, and what it says of itself."""

from dataclasses import replace

import pytest
from factories import CPU, H100, H200, NEW, OLD, SHAPE, T4, TILED_16, TILED_32
from found import find_best, find_best_batch
from sqlalchemy import event, func, text

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.space import Configuration
from tilewright.service.errors import InvalidRequestError
from tilewright.service.store import models

BIG = {"m": 4096, "n": 4096, "k": 4096}


def ask(session, shape=SHAPE, model="nvidia-h200", **more):
    return find_best(session, "gemm", model, shape, **more)


def test_exact_answer_carries_what_was_measured(rows):
    best = rows.best(time_ms=2.0, library_ms=3.0)
    found = ask(rows.session)
    assert (found.match, found.expected_loss, found.tuned_problem) == ("exact", 0, None)
    assert (found.variant, found.configuration, found.time_ms) == ("tiled", {"TILE_WIDTH": 16}, 2.0)
    assert (found.gain_over_default, found.gain_over_slowest) == (2, 5)
    assert (found.library.faster, found.library.speedup) == (False, 1.5)
    assert found.study_id == rows.trial_of(best).study_id
    assert found.launch.grid == (7 * 16, 1, 1)
    assert "-DSHAPE_K=784" in found.flags
    assert "-DTILE_WIDTH=16" in found.flags


@pytest.mark.parametrize(
    ("name", "library_ms", "launched"),
    [
        ("cuBLASLt 13.1.2 (algorithm 66, tile 20, FP32)", 1.5, True),
        ("cuBLASLt 13.1.2 (algorithm 66, tile 20, FP32)", 3.0, False),
        ("cuBLASLt 13.1.2 (heuristic 3 of 8, FP32)", 1.5, False),
        ("cuBLAS 13.1.2 (cublasSgemm, FP32)", 1.5, True),
        ("cuBLAS 13.1.2 (cublasSgemm, FP32) + bias and activation kernel", 1.5, False),
    ],
)
def test_a_faster_call_that_its_name_says_is_the_answer_at_its_own_problem_alone(rows, name, library_ms, launched):
    best = rows.best(time_ms=2.0, library_ms=library_ms)
    best.library_name = name
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.library.name, found.library.launched) == ("exact", name, launched)
    assert found.variant == "tiled"  # stays beside it
    other = ask(rows.session, SHAPE | {"m": 512})
    assert (other.match, other.library.name, other.library.launched) == ("nearest", name, False)


def test_an_answer_states_its_accuracy_and_its_error_beside_the_librarys(rows):
    best = rows.best(library_ms=3.0, options={"accuracy": "fp32-fma"})
    best.bound_ratio, best.library_bound_ratio = 0.25, 0.5
    found = ask(rows.session, options={"accuracy": "fp32-fma"})
    assert (found.match, found.accuracy, found.bound_ratio, found.library.bound_ratio) == (
        "exact",
        "fp32-fma",
        0.25,
        0.5,
    )
    other = ask(rows.session)
    assert (other.match, other.accuracy, other.bound_ratio) == ("default", "fp32", None)
    with pytest.raises(InvalidProblemError, match="fp32-fma is for float32"):
        ask(rows.session, dtype="float64", options={"accuracy": "fp32-fma"})


def test_exact_answer_takes_one_query(rows):
    rows.best()
    rows.session.expire_all()
    seen = []
    engine = rows.session.get_bind()
    event.listen(engine, "before_cursor_execute", lambda *call: seen.append(call[2]))
    ask(rows.session)
    assert len([text for text in seen if text.startswith("SELECT")]) == 1


def test_shape_is_found_in_any_order_of_its_axes(rows):
    rows.best()
    assert ask(rows.session, {"k": 784, "n": 100, "m": 256}).match == "exact"


def test_nearest_shape_wins_over_other_device(rows):
    rows.best(SHAPE | {"m": 512}, configuration=TILED_32)
    rows.best(model=H100, configuration=TILED_16)
    found = ask(rows.session)
    assert (found.match, found.configuration) == ("nearest", {"TILE_WIDTH": 32})
    assert found.tuned_problem.shape == SHAPE | {"m": 512}
    assert (found.problem.shape, found.expected_loss) == (SHAPE, None)
    assert "-DSHAPE_M=256" in found.flags


def test_distance_counts_ratios_per_axis_not_volume(rows):
    rows.best({"m": 1, "n": 4096 * 4096, "k": 64}, configuration=TILED_32)
    rows.best({"m": 2048, "n": 2048, "k": 64}, configuration=TILED_16)
    found = ask(rows.session, {"m": 4096, "n": 4096, "k": 64})
    assert found.tuned_problem.shape["m"] == 2048


def test_other_dtype_or_options_are_not_near(rows):
    rows.best(dtype="float64")
    rows.best(options={"trans_a": True})
    assert ask(rows.session).match == "default"


def test_nearest_result_that_does_not_fit_is_passed_over(rows):
    # Vectors of 4 divide the rows of the tuned shape, but not of the one asked for.
    wide = {"TILE_M": 64, "TILE_N": 64, "TILE_K": 16, "WPT_M": 4, "WPT_N": 4, "VECTOR_WIDTH": 4, "MIN_BLOCKS": 1}
    rows.best({"m": 1024, "n": 1024, "k": 1024}, configuration=Configuration.of("wpt", wide))
    rows.best({"m": 2048, "n": 2048, "k": 2048}, configuration=TILED_32)
    found = ask(rows.session, {"m": 1023, "n": 1023, "k": 1023})
    assert (found.match, found.variant) == ("nearest", "tiled")


def test_transferred_comes_from_the_most_similar_model_of_the_kind(rows):
    rows.best(model=T4, configuration=TILED_16)
    rows.best(model=H100, configuration=TILED_32)
    rows.device(H200)
    found = ask(rows.session)
    assert (found.match, found.device_model, found.configuration) == ("transferred", "nvidia-h100", {"TILE_WIDTH": 32})


def test_nothing_is_transferred_between_cpu_and_gpu(rows):
    rows.best(model=CPU)
    rows.device(H200)
    assert ask(rows.session).match == "default"


def test_default_is_honest_about_knowing_nothing(rows):
    rows.device()
    found = ask(rows.session)
    assert (found.match, found.time_ms, found.expected_loss, found.library) == ("default", None, None, None)
    assert found.improvable


def test_retracted_and_superseded_results_are_not_handed_out(rows):
    rows.best().retracted_at = func.now()
    rows.session.flush()
    assert ask(rows.session).match == "default"


def test_result_whose_environment_moved_on_is_stale(rows):
    rows.best(environment=OLD)
    assert not ask(rows.session).stale
    rows.device(environment=NEW)
    assert ask(rows.session).stale


def test_result_whose_source_changed_is_stale(rows):
    rows.best(source="an older source")
    found = ask(rows.session)
    assert found.stale
    assert found.source_hash == "0" * 64


def test_of_two_environments_the_fresh_one_answers(rows):
    rows.best(time_ms=1.0, environment=OLD)
    rows.best(time_ms=1.5, environment=NEW)
    found = ask(rows.session)
    assert (found.environment.driver, found.stale) == ("580.159", False)
    assert ask(rows.session, driver="570.10").time_ms == 1.0
    assert ask(rows.session, toolkit="1.0").match == "default"


def test_study_that_has_seen_every_variant_is_not_improvable(rows):
    best = rows.best()
    assert ask(rows.session).improvable
    trial = rows.trial_of(best)
    study, job = rows.session.get_one(models.Study, trial.study_id), rows.session.get_one(models.TuningJob, best.job_id)
    for variant in ask(rows.session).unseen_variants:  # whatever the values: the variant was tried
        rows.trial(study, job, Configuration.of(variant, {"TILE_M": 64}), 9.0)
    assert not ask(rows.session).improvable


def test_batch_answers_in_order_what_single_questions_answer(rows):
    rows.best()
    rows.best(BIG, configuration=TILED_32)
    shapes = [BIG, SHAPE, {"m": 3000, "n": 3000, "k": 3000}, SHAPE]
    found = find_best_batch(rows.session, "gemm", "nvidia-h200", shapes)
    assert found == [ask(rows.session, shape) for shape in shapes]
    assert [answer.match for answer in found] == ["exact", "exact", "nearest", "exact"]


def test_device_model_may_be_left_out_while_one_has_devices(rows):
    rows.best()
    rows.model_alone(T4)
    assert ask(rows.session, model=None).match == "exact"
    rows.device(H100)
    with pytest.raises(InvalidRequestError, match="nvidia-h100"):
        ask(rows.session, model=None)


def test_of_models_without_devices_the_only_one_is_meant(rows):
    rows.model_alone(T4)
    assert ask(rows.session, model=None).device_model == "nvidia-t4"
    rows.model_alone(H100)
    with pytest.raises(InvalidRequestError, match="nvidia-h100, nvidia-t4"):
        ask(rows.session, model=None)


def test_of_two_stale_environments_the_newer_one_answers_however_slow(rows):
    rows.best(time_ms=1.0, environment=OLD)
    rows.best(time_ms=1.5, environment=NEW)
    rows.device(environment=replace(NEW, driver="600.1"))
    found = ask(rows.session)
    assert (found.environment.driver, found.stale) == ("580.159", True)


def test_of_stale_environments_the_one_measured_last_answers_whatever_its_number(rows):
    """A driver that was put back has its old, lower number."""
    first = rows.best(time_ms=2.0, environment=OLD)
    rows.best(time_ms=1.0, environment=NEW)
    first.verified_at = func.now() + text("INTERVAL '1 hour'")
    rows.device(environment=replace(NEW, driver="999.1"))
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.time_ms, found.stale) == ("exact", 2.0, True)


def test_a_stale_configuration_that_can_be_used_answers_before_a_newer_one_that_cannot(rows):
    rows.best(time_ms=2.0, environment=OLD)
    newer = rows.best(time_ms=1.0, environment=NEW)
    newer.verified_at = func.now() + text("INTERVAL '1 hour'")
    rows.trial_of(newer).configuration = {"variant": "tiled", "TILE_WIDTH": 77}
    rows.device(environment=replace(NEW, driver="999.1"))
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.time_ms) == ("exact", 2.0)
