"""Answers from memory: the same bytes as from the database, as soon as a change is committed, or none at all."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from caller import Caller
from every_best import WIDE, commit_every_best
from factories import H100, NEW, OLD, SHAPE, TILED_16, Rows
from sqlalchemy import func, select, text, update
from test_predicted_answers import supersede
from waiting import PATIENCE_S, until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.service.app import create_app
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best.retractions import retract
from tilewright.service.operations.best_cache import watch as best_watch
from tilewright.service.operations.best_cache.asked_shelves import asked_lately, note_asked
from tilewright.service.operations.best_cache.memory import BELIEVED_S, EXPECTED_FOR_S, BestMemory
from tilewright.service.operations.best_cache.shelf import Shelf
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.store import models
from tilewright.service.store.changes import Changes
from tilewright.service.store.session import session_scope

GEMM = catalogue().get("gemm")
BEST = "/v1/kernels/gemm/best"


def find(memory, shape=SHAPE, model="nvidia-h200", dtype="float32", **options):
    return memory.find("gemm", model, shape, dtype, options)


def answer(memory, *asked, **more):
    found = find(memory, *asked, **more)
    return None if found is None else BestAnswer.model_validate_json(found.as_json)


def told(memory, *asked, **more):
    """The answer, after a wait: a machine with other things to do may let what is kept grow old for a moment."""
    return until(lambda: answer(memory, *asked, **more))


@pytest.fixture
def memory(client):
    """The memory of the application, watched as in a server."""
    memory = client.app.state.best
    watch = BestWatch(memory)
    watch.start()
    yield memory
    watch.stop()


@contextmanager
def committed():
    with session_scope() as session:
        yield Rows(session)


def from_database(shape=SHAPE, model="nvidia-h200", dtype="float32", **options):
    with session_scope() as session:
        return find_best(session, "gemm", model, shape, dtype, options)


@pytest.fixture
def tuned(memory):
    """Results of every kind that answers differ by, in memory."""
    commit_every_best()
    until(lambda: answer(memory))
    return memory


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


def test_memory_and_database_give_the_same_bytes(tuned):
    for asked in SAME:
        expected = from_database(**asked)  # which also finds out whether anything can be predicted
        assert until(lambda a=asked: find(tuned, **a)).as_json.decode() == expected.model_dump_json(), asked


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


def test_many_random_questions_are_answered_as_the_database_answers_them(tuned):
    for m in (1, 8, 100, 255, 257, 400, 511, 900, 1500, 2047, 10**6):
        for n, k in ((7, 784), (100, 784), (1024, 1024), (2000, 3)):
            shape = {"m": m, "n": n, "k": k}
            expected = from_database(shape)
            assert told(tuned, shape) == expected


def tune_four(rows):
    """Enough tuned shapes to predict from; the bests, whose configuration is the fastest of each."""
    tried = [Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}) for x in (16, 32, 64) for y in (2, 4, 8)]
    bests = [rows.best(SHAPE | {"m": m}, time_ms=m / 100) for m in (256, 512, 1024, 2048)]
    for best in bests:
        trial = rows.trial_of(best)
        study = rows.session.get_one(models.Study, trial.study_id)
        job = rows.session.get_one(models.TuningJob, trial.job_id)
        for place, configuration in enumerate(tried):
            rows.trial(study, job, configuration, 2 * best.time_ms + place / 50)
    return bests


def test_what_was_predicted_once_is_remembered(memory):
    with committed() as rows:
        tune_four(rows)
    until(lambda: answer(memory))
    asked = SHAPE | {"m": 700}
    assert answer(memory, asked) is None
    expected = from_database(asked)
    assert expected.match == "predicted"
    assert until(lambda: find(memory, asked)).as_json.decode() == expected.model_dump_json()
    assert answer(memory, SHAPE | {"m": 701}) is None


def test_a_prediction_from_what_was_superseded_and_then_retracted_is_forgotten(memory):
    with committed() as rows:
        bests = tune_four(rows)
        for best in bests:
            supersede(rows, best, Configuration.of("naive", {"BLOCK_X": 16, "BLOCK_Y": 2}))
        superseded = [best.id for best in bests]
    until(lambda: answer(memory))
    asked = SHAPE | {"m": 700}
    assert from_database(asked).configuration == {"TILE_WIDTH": 16}
    assert told(memory, asked).configuration == {"TILE_WIDTH": 16}
    with committed() as rows:
        for result_id in superseded:
            retract(rows.session, result_id, "wrong")
    until(lambda: answer(memory, asked) is None)
    expected = from_database(asked)
    assert (expected.match, expected.variant) == ("predicted", "naive")
    assert told(memory, asked) == expected


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


def see(memory, change, *asked):
    """Returns when memory says what the database says after the commit of `change`."""
    with committed() as rows:
        change(rows)
    shapes = [SHAPE, *asked]
    wanted = [from_database(shape) for shape in shapes]
    until(lambda: [answer(memory, shape) for shape in shapes] == wanted)


def test_a_new_best_is_seen(tuned):
    new = SHAPE | {"m": 700}
    see(tuned, lambda rows: rows.best(new, time_ms=0.25), new, SHAPE | {"m": 701})
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

    see(tuned, publish, SHAPE | {"m": 257})
    assert told(tuned).time_ms == 0.125


def test_a_retracted_best_is_not_handed_out(tuned):
    def withdraw(rows):
        retract(rows.session, answer_id(rows), "wrong")

    def answer_id(rows):
        return rows.session.scalar(text("SELECT id FROM best_configurations WHERE library_ms = 3"))

    see(tuned, withdraw, SHAPE | {"m": 255})
    assert told(tuned).library is None


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


def test_while_the_database_is_silent_nothing_is_answered(client):
    now = [100.0]
    memory = BestMemory(1000, clock=lambda: now[0])
    with committed() as rows:
        rows.best()
    with session_scope() as session:
        memory.learn_models(session)
        memory.put(("gemm", "nvidia-h200"), memory.filled(session, ("gemm", "nvidia-h200"), lambda: None))
    memory.confirm()
    assert answer(memory).match == "exact"
    now[0] += BELIEVED_S * 1.01
    assert answer(memory) is None


def test_who_asks_while_a_shelf_is_filled_does_not_have_it_filled_again(client):
    memory, name = BestMemory(1000), ("gemm", "nvidia-h200")
    with committed() as rows:
        rows.best()
    with session_scope() as session:
        memory.learn_models(session)
        memory.confirm()
        assert (find(memory), memory.wanted()) == (None, name)
        shelf = memory.filled(session, name, lambda: find(memory))
        assert (find(memory), memory.wanted()) == (None, None)
        memory.put(name, shelf)
        assert find(memory).match == "exact"
        with pytest.raises(ZeroDivisionError):
            memory.filled(session, name, lambda: 1 / 0)
    memory.forget()
    with session_scope() as session:
        memory.learn_models(session)
    memory.confirm()
    assert (find(memory), memory.wanted()) == (None, name)


def test_a_shelf_that_there_is_no_room_for_stays_in_the_database(client, caplog):
    memory = BestMemory(1)
    with committed() as rows:
        rows.best(configuration=TILED_16)
        rows.best(SHAPE | {"m": 8})
    with session_scope() as session:
        memory.learn_models(session)
        assert memory.filled(session, ("gemm", "nvidia-h200"), lambda: None) is None
    assert "TILEWRIGHT_BEST_KEPT" in caplog.text


def test_a_killed_connection_is_made_again_and_no_change_is_missed(tuned):
    with session_scope() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query LIKE 'SELECT 1%' AND pid <> :own"
            ),
            {"own": session.scalar(text("SELECT pg_backend_pid()"))},
        )
    with committed() as rows:
        rows.best(SHAPE | {"m": 800}, time_ms=0.5)
        rows.session.execute(func.pg_sleep(0))
    until(lambda: (found := answer(tuned, SHAPE | {"m": 800})) and found.match == "exact")


def test_no_error_ends_the_thread(tuned, monkeypatch):
    monkeypatch.setattr(best_watch, "AGAIN_S", 0.01)
    wait, failures = Changes.wait, ["one"]

    def fails_once(*of):
        if failures:
            raise ValueError(failures.pop())
        return wait(*of)

    monkeypatch.setattr(Changes, "wait", fails_once)
    until(lambda: not failures)
    assert told(tuned) == from_database()


def test_what_was_asked_about_is_read_by_the_next_process_before_it_is_ready(client):
    commit_every_best()
    before = client.app.state.best
    assert client.get("/ready").status_code == 200
    watch = BestWatch(before)
    watch.start()
    until(lambda: find(before))
    until(noted)
    watch.stop()

    after, let_go = create_app(), threading.Event()
    watch = BestWatch(after.state.best)
    piece = Shelf.fill

    def held_up(shelf, rows):
        assert let_go.wait(PATIENCE_S)
        piece(shelf, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shelf, "fill", held_up)
        watch.start()
        refused = until(lambda: "1 of 1" in (said := Caller(after).get("/ready")).text and said)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/not-ready")
        let_go.set()
        until(lambda: Caller(after).get("/ready").status_code == 200)
    assert len(after.state.best) > 0  # though nobody asked this process
    watch.stop()


def noted():
    with session_scope() as session:
        return asked_lately(session)


def test_what_cannot_be_read_is_not_waited_for_for_ever(client):
    now = 0.0
    memory = BestMemory(1000, clock=lambda: now)
    assert memory.what_is_missing() is None  # nobody watches it
    memory.prepare()
    assert "has not asked" in memory.what_is_missing()
    now = EXPECTED_FOR_S + 1
    assert memory.what_is_missing() is None


def test_shelves_that_nobody_asked_about_lately_are_forgotten(client):
    commit_every_best()
    with session_scope() as session:
        note_asked(session, [("gemm", "nvidia-h200"), ("gemm", "gone")])
        assert asked_lately(session) == [("gemm", "nvidia-h200")]
        session.execute(update(models.AskedShelf).values(asked_at=func.now() - text("INTERVAL '8 days'")))
        assert asked_lately(session) == []
        note_asked(session, [])
        assert session.scalar(select(func.count()).select_from(models.AskedShelf)) == 0
