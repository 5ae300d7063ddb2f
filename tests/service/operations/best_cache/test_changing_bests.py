"""Answers from memory follow what is committed."""

from dataclasses import replace

from best_in_memory import GEMM, answer, ask, committed, from_database, told
from factories import NEW, SHAPE, TILED_16, TILED_32, WIDE
from sqlalchemy import text
from waiting import until

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.retractions import retract
from tilewright.service.store import models


def see(memory, change, *asked):
    """Returns when memory says what the database says after the commit of `change`."""
    with committed() as rows:
        change(rows)
    wanted = [from_database(shape) for shape in (SHAPE, *asked)]
    until(lambda: [answer(memory, shape) for shape in (SHAPE, *asked)] == wanted)


def test_a_new_best_is_seen(tuned):
    new = SHAPE | {"m": 700}
    see(tuned, lambda rows: rows.best(new, time_ms=0.25), new)
    assert told(tuned, new).match == "exact"


def test_a_better_best_takes_the_place_of_the_old(tuned):
    def publish(rows):
        rows.session.execute(text("UPDATE best_configurations SET retracted_at = now() WHERE library_ms = 3"))
        rows.session.execute(
            text(
                "INSERT INTO best_configurations (problem_id, device_model_id, environment_id, trial_id, job_id,"
                " time_ms, ci_low_ms, ci_high_ms, l2, gflops, gb_per_s)"
                " SELECT problem_id, device_model_id, environment_id, trial_id, job_id, 0.125, 0.1, 0.2, l2, 1, 1"
                " FROM best_configurations WHERE library_ms = 3"
            )
        )

    see(tuned, publish)
    assert told(tuned).time_ms == 0.125


def test_a_retracted_best_is_not_handed_out(client, tuned):
    def withdraw(rows):
        retract(rows.session, answer_id(rows), "wrong")

    def answer_id(rows):
        return rows.session.scalar(text("SELECT id FROM best_configurations WHERE library_ms = 3"))

    with committed() as rows:
        withdraw(rows)
    until(lambda: answer(tuned) is None)
    assert ask(client).json()["library"] is None
    assert told(tuned) == from_database()


def test_results_with_other_options_are_seen_after_the_last_with_some_is_gone(tuned):
    def withdraw(rows):
        gone = "UPDATE best_configurations b SET retracted_at = now() FROM problems p"
        rows.session.execute(text(f"{gone} WHERE p.id = b.problem_id AND p.dtype = 'float64'"))

    assert told(tuned, SHAPE | {"n": 7}, dtype="float64").match == "exact"
    see(tuned, withdraw)
    until(lambda: answer(tuned, SHAPE | {"n": 7}, dtype="float64") is None)
    with committed() as rows:
        rows.best(options={"trans_b": True})
    until(lambda: (found := answer(tuned, trans_b=True)) and found.match == "exact")


def test_a_variant_that_was_tried_is_not_unseen_any_more(tuned):
    def try_another(rows):
        best = rows.session.scalar(text("SELECT trial_id FROM best_configurations WHERE library_ms = 3"))
        trial = rows.session.get_one(models.Trial, best)
        rows._numbers[trial.study_id] = 1
        study = rows.session.get_one(models.Study, trial.study_id)
        rows.trial(study, rows.session.get_one(models.TuningJob, trial.job_id), Configuration.of("wpt", WIDE), 9.0)

    before = told(tuned).unseen_variants
    see(tuned, try_another)
    assert set(before) - set(told(tuned).unseen_variants) == {"wpt"}


def test_what_a_study_has_no_configuration_for_is_not_unseen(tuned):
    unseen = told(tuned).unseen_variants[0]
    key = f"{unseen}:{GEMM.source_hash(unseen)}"

    def note(rows):
        rows.session.execute(
            text("UPDATE studies SET space_by_source = jsonb_build_object(CAST(:key AS text), 0)"), {"key": key}
        )

    see(tuned, note)
    assert unseen not in told(tuned).unseen_variants


def test_a_driver_that_moved_on_makes_it_stale(tuned):
    assert not told(tuned).stale
    with committed() as rows:
        rows.device(environment=replace(NEW, driver="999.1"))
    until(lambda: (found := answer(tuned)) and found.stale)
    assert told(tuned) == from_database()


def test_many_rows_of_one_statement_are_seen_too(tuned):
    with committed() as rows:
        rows.session.execute(text("UPDATE best_configurations SET ties = 3"))
        rows.session.execute(
            text(
                "INSERT INTO best_configurations (problem_id, device_model_id, environment_id, trial_id, job_id,"
                " time_ms, ci_low_ms, ci_high_ms, l2, gflops, gb_per_s, retracted_at)"
                " SELECT problem_id, device_model_id, environment_id, trial_id, job_id, 1, 1, 1, l2, 1, 1, now()"
                " FROM best_configurations, generate_series(1, 60)"
            )
        )
    until(lambda: (found := answer(tuned)) and found.ties == 3)
    assert told(tuned) == from_database()


def test_a_table_answers_for_its_sizes_and_the_next_one_in_its_place(client, tuned):
    size, family, times = SHAPE | {"m": 307}, SHAPE | {"m": "1..512"}, {1: 1.0, 512: 2.0}
    before = ask(client, size).json()
    assert before["match"] not in {"exact", "range"}
    for configuration in (TILED_16, TILED_32):
        with committed() as rows:
            rows.table(family, [(1, 512, configuration)], {configuration: times})
        wanted = "range", dict(configuration.items)
        until(lambda: ((now := ask(client, size).json())["match"], now["configuration"]) == wanted)  # noqa: B023 - at once
        assert told(tuned, size).sizes == "m=1..512"
