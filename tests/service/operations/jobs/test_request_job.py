"""Jobs as they are requested, and the configurations that they try first."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE, measured, request
from pydantic import ValidationError
from sqlalchemy import event, text

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration, choice
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.jobs.jobs import cancel_job, job
from tilewright.service.operations.jobs.request import dry_run, request_job
from tilewright.service.operations.jobs.starts import nearest_feasible, starts_in
from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

pytestmark = pytest.mark.usefixtures("device")


def engine_entries(session) -> list[tuple[str, str, int]]:
    query = "SELECT queue_name, args->>'job_id', priority FROM procrastinate_jobs ORDER BY id"
    return [tuple(row) for row in session.execute(text(query))]


def test_a_job_is_stored_and_enqueued_in_one_transaction(session):
    job, is_new = request_job(session, request(priority=3))
    assert (is_new, job.state, job.device_model, job.trials_done) == (True, "queued", "test-gpu", 0)
    assert job.problem.shape == SHAPE
    assert list(job.problem.shape) == ["m", "n", "k"]
    assert engine_entries(session) == [("model:test-gpu", str(job.id), engine_priority(3, 0))]
    row = session.get_one(models.TuningJob, job.id)
    assert row.engine_id == session.scalar(text("SELECT id FROM procrastinate_jobs"))
    session.rollback()
    assert engine_entries(session) == []


def test_a_job_for_one_device_waits_in_that_devices_queue(session):
    job, _ = request_job(session, request(device="GPU-1"))
    assert (job.device, engine_entries(session)[0][0]) == ("GPU-1", "device:GPU-1")


def test_an_identical_open_job_is_joined_whatever_its_priority(session):
    first, _ = request_job(session, request())
    second, is_new = request_job(session, request(priority=9))
    assert (second.id, is_new) == (first.id, False)
    assert len(engine_entries(session)) == 1


@pytest.mark.parametrize(
    "other", [{"trials": 11}, {"seed": 1}, {"variants": ["naive"]}, {"device": "GPU-1"}, {"dtype": "float64"}]
)
def test_other_work_is_another_job(session, other):
    first, _ = request_job(session, request())
    second, is_new = request_job(session, request(**other))
    assert is_new
    assert second.id != first.id


def test_the_answer_about_a_new_job_is_what_a_look_at_it_says(session):
    made, _ = request_job(session, request(device="GPU-1", variants=["naive"], seed=3))
    assert made == job(session, made.id)
    other, is_new = request_job(session, request(device="GPU-1", variants=["naive"], seed=4))  # its problem is known
    assert (is_new, other) == (True, job(session, other.id))


def test_a_new_job_of_a_known_problem_takes_two_statements(session):
    request_job(session, request())
    said = []
    listening = (session.get_bind(), "before_cursor_execute", lambda *told: said.append(told[2]))
    event.listen(*listening)
    try:
        assert request_job(session, request(seed=1))[1]
    finally:
        event.remove(*listening)
    assert [statement.split()[0] for statement in said] == ["SELECT", "WITH"]


def test_an_ended_job_is_not_joined(session):
    first, _ = request_job(session, request())
    cancel_job(session, first.id)
    assert request_job(session, request())[1]


def test_the_same_key_answers_with_the_same_job_even_when_it_has_ended(session):
    first, _ = request_job(session, request(), idempotency_key="k")
    cancel_job(session, first.id)
    again, is_new = request_job(session, request(), idempotency_key="k")
    assert (again.id, again.state, is_new) == (first.id, "cancelled", False)


def test_a_key_that_joined_a_job_stays_with_it(session):
    first, _ = request_job(session, request(), idempotency_key="a")
    assert request_job(session, request(), idempotency_key="b")[0].id == first.id
    cancel_job(session, first.id)
    assert request_job(session, request(), idempotency_key="b")[0].id == first.id


def test_a_device_of_another_model_is_refused(session):
    other = registry.DeviceModel("other-gpu", "Other", "cuda", MODEL.limits, 1, {}, None)
    registry.register_device(session, other, "GPU-9", "host-b", 0, ENVIRONMENT)
    with pytest.raises(InvalidRequestError, match="this device is a other-gpu, not a test-gpu"):
        request_job(session, request(device="GPU-9", device_model="test-gpu"))
    with pytest.raises(InvalidRequestError, match="name one of other-gpu, test-gpu"):
        request_job(session, request())


def test_a_dry_run_estimates_from_the_trials_that_there_are(session, take):
    desk = take()
    desk.record(0, measured(1.0))
    desk.record(1, measured(2.0))
    assert dry_run(session, request(trials=7))["estimated_seconds"] == pytest.approx(7 * 0.5)


def test_requests_at_the_same_moment_become_one_job(configured):
    with session_scope() as session:
        registry.register_kernels(session, catalogue())
        registry.register_device(session, MODEL, "GPU-1", "host-a", 0, ENVIRONMENT)

    def ask(key: str | None):
        with session_scope() as session:
            job, is_new = request_job(session, request(), idempotency_key=key)
            return job.id, is_new

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [None, None, "k", "k"]))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1
    with session_scope() as session:
        assert len(engine_entries(session)) == 1


GEMM = catalogue().get("gemm")
TILED = {"variant": "tiled", "configuration": {"TILE_WIDTH": 8}}
NAMES = {"BLOCK_SIZE_M": "TILE_WIDTH"}
FILE = {
    "triton_version": "3.4.0",
    "1": {"BLOCK_SIZE_M": 8, "num_warps": 4},
    "64": {"BLOCK_SIZE_M": 16, "num_warps": 8},
    "4096": {"BLOCK_SIZE_M": 16, "num_warps": 4},
}


@pytest.mark.usefixtures("device")
def test_a_jobs_starts_are_complete_and_kept(session):
    job, _ = request_job(session, request(starts=[TILED, {"variant": "wpt", "configuration": {}}]))
    defaults = {p.name: p.default for p in GEMM.variant("wpt").parameters}
    assert job.starts == [{"variant": "tiled", "TILE_WIDTH": 8}, {"variant": "wpt"} | dict(sorted(defaults.items()))]
    assert session.get_one(models.TuningJob, job.id).starts == job.starts


@pytest.mark.usefixtures("device")
def test_a_job_with_other_starts_is_other_work(session):
    first, _ = request_job(session, request())
    second, is_new = request_job(session, request(starts=[TILED]))
    third, _ = request_job(session, request(starts=[TILED]))
    assert is_new
    assert second.id == third.id != first.id
    assert first.starts is None


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("start", "field"),
    [
        ({"variant": "tild", "configuration": {}}, "starts.0.variant"),
        ({"configuration": {"TILE_WIDTH": 8, "WARP": 1}}, "starts.0.configuration"),
        ({"configuration": {}}, "starts.0.variant"),
    ],
)
def test_a_start_that_no_variant_has_is_named(session, start, field):
    with pytest.raises(InvalidRequestError) as refused:
        request_job(session, request(starts=[start]))
    assert refused.value.field == field


def test_where_the_space_has_a_start_not_its_nearest_is_tried():
    space = GEMM.space(GEMM.problem({"m": 64, "n": 64, "k": 64}), Limits((9, 0), 132, 1 << 36), only=["tiled"])
    outside = {"variant": "tiled", "TILE_WIDTH": 9}
    found = nearest_feasible(space, [{"variant": "tiled", "TILE_WIDTH": 8}, outside, outside])
    assert found[0] == Configuration.of("tiled", {"TILE_WIDTH": 8})
    assert set(found) <= set(space.feasible)
    assert len(found) == len(set(found))


def test_a_serving_file_gives_its_rows_nearest_first():
    found = starts_in(FILE, GEMM, {"m": 100, "n": 64, "k": 64}, NAMES)
    assert [start.configuration for start in found.starts] == [{"TILE_WIDTH": 16}, {"TILE_WIDTH": 8}]
    assert (found.unknown, found.no_numbers) == ({"num_warps"}, frozenset())
    assert starts_in(FILE, GEMM, {"m": 2, "n": 64, "k": 64}, NAMES).starts[0].configuration == {"TILE_WIDTH": 8}


@pytest.mark.parametrize("value", [True, None, "8", 8.5])
def test_a_value_that_is_no_whole_number_is_left_out_and_named(value):
    file = {"1": {"TILE_WIDTH": 8}, "64": {"TILE_WIDTH": 16, "WPT_M": value, "USE_TMA": value}}
    found = starts_in(file, GEMM, {"m": 64, "n": 64, "k": 64}, {})
    assert [start.configuration for start in found.starts] == [{"TILE_WIDTH": 16}, {"TILE_WIDTH": 8}]
    assert (found.unknown, found.no_numbers) == ({"USE_TMA"}, {"WPT_M"})


def test_what_triton_keeps_of_its_search_comes_fastest_first():
    configs = [({"TILE_WIDTH": 8}, [0.3, 0.2, 0.4]), ({"TILE_WIDTH": 16}, [0.1, 0.1, 0.2]), ({"TILE_WIDTH": 32}, 9.0)]
    configs.append(({"TILE_WIDTH": 4}, [math.inf] * 3))  # it failed there
    kept = [[{"kwargs": kwargs, "num_warps": 4, "num_ctas": 1, "maxnreg": None}, times] for kwargs, times in configs]
    found = starts_in({"key": [64], "configs_timings": kept}, GEMM, {"m": 64, "n": 64, "k": 64}, {})
    assert [start.configuration["TILE_WIDTH"] for start in found.starts] == [16, 8, 32]
    assert found.unknown == {"num_warps"}


def test_truth_values_are_those_of_a_flag():
    kernel = replace(GEMM, variants=(replace(GEMM.variant("tiled"), parameters=(choice("TILE_WIDTH", 8), choice("EVEN", 0, 1))),))  # fmt: skip  # noqa: E501
    found = starts_in({"1": {"TILE_WIDTH": 8, "EVEN": True}}, kernel, {"m": 1, "n": 1, "k": 1}, {})
    assert (found.starts[0].configuration, found.no_numbers) == ({"TILE_WIDTH": 8, "EVEN": 1}, frozenset())


def test_our_own_form_is_one_configuration_or_a_list():
    assert starts_in(TILED, GEMM, {"m": 1}, {}) == starts_in([TILED], GEMM, {"m": 1}, {})


@pytest.mark.parametrize(
    ("document", "kernel", "said"),
    [
        ({"1": {"SPLIT": 8}}, "gemm", "none of the parameters of gemm"),
        ({"one": {"TILE_WIDTH": 8}}, "gemm", "'one' is not a number of rows"),
        ({"1": [8]}, "gemm", "'1' is not a number of rows"),
        ({"1": {"512": {"TILE_WIDTH": 8}}}, "gemm", "'1' has another level, '512'"),
        ({"1": {"TILE_WIDTH": "8"}}, "gemm", "no whole number for any of TILE_WIDTH"),
        ([1, 2], "gemm", "dictionary"),
        ({"configs_timings": [1]}, "gemm", "no list of Triton's configurations"),
        (7, "gemm", "neither a configuration nor an object"),
        ({"1": {"THREADS": 64}}, "conv2d", "no axis m"),
    ],
)
def test_a_file_that_is_not_one_says_why(document, kernel, said):
    declared = catalogue().get(kernel)
    with pytest.raises((InvalidRequestError, ValidationError), match=said):
        starts_in(document, declared, dict(declared.example_shape), {})
