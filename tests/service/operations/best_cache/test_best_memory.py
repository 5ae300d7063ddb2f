"""Answers from memory: the same bytes as from the database, or none at all."""

from dataclasses import replace

from best_in_memory import GEMM, answer, ask, committed, find, from_database, told
from factories import H100, NEW, OLD, SHAPE, TILED_16, TILED_32, WIDE, tune_four
from sqlalchemy import text
from test_predicted_answers import supersede
from waiting import until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.retractions import retract
from tilewright.service.operations.best_cache.memory import BELIEVED_S
from tilewright.service.store import models

BEST = "/v1/kernels/gemm/best"

SAME = [
    {},
    {"shape": SHAPE | {"m": 512}},
    {"shape": SHAPE | {"m": 300}},
    {"shape": SHAPE | {"m": 301}},
    {"shape": {"k": 784, "n": 100, "m": 256}},
    {"shape": {"m": 1023, "n": 1023, "k": 1023}},  # the nearest does not fit
    {"shape": {"m": 7, "n": 12345, "k": 784}},  # far from all: by an estimate
    {"shape": {"m": 2**20, "n": 2**20, "k": 2**20}},
    {"shape": {"m": 1, "n": 1, "k": 1}},
    {"shape": {"m": 1, "n": 3, "k": 2**24}},
    {"accuracy": "fp32-fma", "trans_b": True},
    {"dtype": "float64"},
]


def test_memory_and_database_give_the_same_bytes(client, tuned):
    for asked in SAME:
        given = ask(client, **asked)
        assert given.text == from_database(**asked).model_dump_json(), asked
        assert find(tuned, **asked).as_json == given.content, asked


def test_only_what_was_tuned_exactly_is_answered_before_it_was_asked_for(tuned):
    assert [find(tuned, **asked) is not None for asked in SAME[:4]] == [True, True, True, False]


LEFT = [
    {"shape": SHAPE | {"m": 0}},
    {"shape": {"m": 1}},
    {"model": "nobody"},
    {"model": None},  # there are several
    {"dtype": "float16"},
    {"trans_a": True},  # the database knows what can be transferred
    {"trans_b": 3},
]


def test_what_memory_cannot_tell_is_left_to_the_database(tuned):
    assert [asked for asked in LEFT if find(tuned, **asked) is not None] == []


def test_many_random_questions_are_answered_as_the_database_answers_them(client, tuned):
    for m in (1, 100, 257, 511, 1500, 10**6):
        for n, k in ((7, 784), (100, 784), (1024, 1024), (2000, 3)):
            shape = {"m": m, "n": n, "k": k}
            expected = from_database(shape)
            assert ask(client, shape).text == expected.model_dump_json()
            assert told(tuned, shape) == expected


def test_what_was_predicted_once_is_remembered(client, memory):
    with committed() as rows:
        tune_four(rows)
    until(lambda: answer(memory))
    asked = SHAPE | {"m": 700}
    assert answer(memory, asked) is None
    expected = from_database(asked)
    assert expected.match == "predicted"
    assert ask(client, asked).text == expected.model_dump_json()
    assert find(memory, asked).as_json.decode() == expected.model_dump_json()
    assert answer(memory, SHAPE | {"m": 701}) is None


def test_a_prediction_stands_until_it_is_made_anew_and_that_is_asked_for(client, memory):
    with committed() as rows:
        tune_four(rows)
    until(lambda: answer(memory))
    asked = SHAPE | {"m": 700}
    before = BestAnswer.model_validate_json(ask(client, asked).text)
    with committed() as rows:
        rows.best(SHAPE | {"m": 4096}, time_ms=40.96)
    until(lambda: answer(memory, SHAPE | {"m": 4096}))
    assert told(memory, asked) == before
    assert memory.take_missed() == {("gemm", "nvidia-h200"): [catalogue().get("gemm").problem(asked)]}


def test_a_default_gives_way_to_what_another_device_model_learns(client, memory):
    """What is transferred depends on results that the shelf does not hold."""
    with committed() as rows:
        rows.best(SHAPE, dtype="float64")
        rows.model_alone(H100)
    until(lambda: answer(memory, SHAPE, dtype="float64"))
    assert ask(client).json()["match"] == "default"
    assert told(memory).match == "default"
    with committed() as rows:
        rows.best(SHAPE, model=H100)
    until(lambda: find(memory) is None)
    assert ask(client).json()["match"] == "transferred"


def test_a_prediction_from_what_was_superseded_and_then_retracted_is_forgotten(client, memory):
    with committed() as rows:
        bests = tune_four(rows)
        for best in bests:
            supersede(rows, best, Configuration.of("naive", {"BLOCK_X": 16, "BLOCK_Y": 2}))
        superseded = [best.id for best in bests]
    until(lambda: answer(memory))
    asked = SHAPE | {"m": 700}
    assert ask(client, asked).json()["configuration"] == {"TILE_WIDTH": 16}
    assert told(memory, asked).configuration == {"TILE_WIDTH": 16}
    with committed() as rows:
        for result_id in superseded:
            retract(rows.session, result_id, "wrong")
    until(lambda: answer(memory, asked) is None)
    expected = from_database(asked)
    assert (expected.match, expected.variant) == ("predicted", "naive")
    assert ask(client, asked).text == expected.model_dump_json()


def test_a_question_that_names_an_environment_goes_to_the_database(client, tuned):
    asked = {"shape": "m=512,n=100,k=784", "device_model": "nvidia-h200"}
    assert client.get(BEST, params=asked).json()["time_ms"] == 0.7
    assert client.get(BEST, params=asked | {"driver": OLD.driver}).json()["time_ms"] == 1 / 3


def test_over_http_the_short_way_says_what_the_long_way_says(client, tuned):
    asked = {"shape": "m=256,n=100,k=784", "device_model": "nvidia-h200"}
    short = client.get(BEST, params=asked)
    long = client.get(BEST, params=asked | {"toolkit": NEW.toolkit})
    assert (short.status_code, short.content) == (200, long.content)
    ignored = {"x-request-id"}
    assert {k: v for k, v in short.headers.items() if k not in ignored} == {
        k: v for k, v in long.headers.items() if k not in ignored
    }
    seen = client.get(BEST, params=asked, headers={"If-None-Match": short.headers["etag"]})
    assert (seen.status_code, seen.content, seen.headers["etag"]) == (304, b"", short.headers["etag"])


NOT_PLAIN = [
    ("shape=m=0,n=1,k=1", 422),
    ("shape=m=1", 422),
    ("shape=m=256,n=100,k=784&shape=m=1,n=1,k=1", 200),
    ("shape=m=256,n=100,k=784&other=1", 422),
    (f"shape=m=256,n=100,k=784&dtype={'x' * 17}", 422),
    ("shape=m=256,n=100,k=784&device_model=nobody", 404),
    ("device_model=nvidia-h200", 422),
]


def test_questions_that_are_not_plain_are_answered_as_ever(client, tuned):
    for query, status in NOT_PLAIN:
        model = "" if "device_model" in query else "&device_model=nvidia-h200"
        response = client.get(f"{BEST}?{query}{model}")
        assert response.status_code == status, query
        if status != 200:
            assert response.headers["content-type"] == "application/problem+json"


def test_demand_and_lookups_are_counted_on_the_short_way(client, tuned):
    for m in (256, 301, 301):
        client.get(BEST, params={"shape": f"m={m},n=100,k=784", "device_model": "nvidia-h200"})
    assert client.app.state.demand.flush() == 1
    metrics = client.get("/metrics").text
    assert 'tilewright_lookups_total{match="exact"} 1.0' in metrics
    assert 'tilewright_lookups_total{match="nearest"} 2.0' in metrics
    assert 'route="/v1/kernels/{kernel}/best",status="200"} 3.0' in metrics


def test_a_batch_asks_the_database_only_for_what_is_not_in_memory(client, tuned):
    shapes = [SHAPE, SHAPE | {"m": 301}, SHAPE | {"m": 512}, SHAPE]
    body = {"shapes": shapes, "device_model": "nvidia-h200"}
    found = client.post(f"{BEST}:batch", json=body).json()["items"]
    assert found == [from_database(shape).model_dump(mode="json") for shape in shapes]
    refused = client.post(f"{BEST}:batch", json=body | {"shapes": [SHAPE, SHAPE | {"m": 0}]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/shapes/1/m")


def test_the_only_device_model_may_be_left_out(memory):
    with committed() as rows:
        rows.best()
    until(lambda: answer(memory, model=None))


def test_an_imported_model_is_not_meant_and_that_of_a_new_device_may_be(memory):
    with committed() as rows:
        rows.best()
        rows.model_alone(H100)
    assert until(lambda: answer(memory, model=None)).device_model == "nvidia-h200"
    with committed() as rows:
        rows.device(H100)
    until(lambda: answer(memory) and not answer(memory, model=None))


def test_what_nobody_confirmed_for_longer_than_it_is_believed_is_left_to_the_database(tuned):
    memory, now = tuned, [1000.0]
    told(memory)
    memory._clock = lambda: now[0]
    memory.confirm()
    now[0] += BELIEVED_S
    assert find(memory) is not None
    now[0] += 0.001
    assert find(memory) is None


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
