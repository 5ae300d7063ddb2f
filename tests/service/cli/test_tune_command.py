"""What `tune` says of the job that it waited for; `tables` of a family."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from factories import PROCESSOR, TILED_16, TILED_32, Rows
from sqlalchemy import delete, select, update
from test_commands import one_error_line
from waiting import until

from tilewright.kernels.problem import Limits
from tilewright.service.operations.exchange.rows import device_model_id
from tilewright.service.store.models import BestConfiguration, JobState, Trial, TuningJob
from tilewright.service.store.session import session_scope
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.outcome import Outcome

GEMM = ("tune", "gemm", "--shape", "m=64,n=32,k=48")


def end_queued(state: JobState, **values: Any) -> None:
    """Ends the one job that is queued as its worker would, once there is one."""
    queued = update(TuningJob).where(TuningJob.state == JobState.QUEUED)

    def end() -> int:
        with session_scope() as session:
            return session.execute(queued.values(state=state, **values)).rowcount

    until(end)


@pytest.mark.parametrize("failure", [None, "timed_out: library took longer than 240 s and was killed"])
def test_it_says_when_the_library_left_the_finals(run, tuned, failure):
    with ThreadPoolExecutor(1) as worker:
        ended = worker.submit(end_queued, JobState.DONE, result={"library_failure": failure})
        ran = run(*GEMM)
        ended.result()
    assert ran.status == 0
    assert "2 ms" in ran.out
    assert ("the library left the finals" in ran.err) == (failure is not None)
    assert failure is None or failure in ran.err


def test_a_best_from_before_is_told_apart_from_a_job_that_measured_nothing(run, tuned):
    with ThreadPoolExecutor(1) as worker:
        ended = worker.submit(end_queued, JobState.DONE, result={"best": None, "published": False})
        ran = run(*GEMM)
        ended.result()
    assert (ran.status, ran.out) == (3, "")
    assert "no configuration was measured" in ran.err
    assert "The best so far, 2 ms, is from an earlier job" in ran.err
    assert "stale" not in ran.err
    assert "faster beyond the noise" not in ran.err


def test_a_job_that_failed_is_one_line_and_a_status(run, tuned):
    with ThreadPoolExecutor(1) as worker:
        ended = worker.submit(end_queued, JobState.FAILED, error="the device was lost")
        ran = run(*GEMM)
        ended.result()
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == "error the job failed: the device was lost"


def test_an_imported_device_model_is_not_tuned_on_nor_asked_about(run, registered):
    limits = Limits((8, 0), multiprocessors=108, memory_bytes=40 << 30)
    with session_scope() as session:
        foreign = DeviceModel("nvidia-a100", "NVIDIA A100", "cuda", limits, 1 << 20, {}, None)
        device_model_id(session, foreign.slug, foreign)
    asked = ("gemm", "--shape", "m=64,n=48,k=80")
    assert run("best", *asked, "--json").json["device_model"] == "cpu:test-processor"
    assert run("tune", *asked, "--no-wait", "--json").json["job"]["device_model"] == "cpu:test-processor"


def test_an_imported_model_without_a_device_is_asked_about_and_not_tuned_on(run, local):
    limits = Limits((8, 0), multiprocessors=108, memory_bytes=40 << 30)
    with session_scope() as session:
        foreign = DeviceModel("nvidia-a100", "NVIDIA A100", "cuda", limits, 1 << 20, {}, None)
        device_model_id(session, foreign.slug, foreign)
    asked = ("gemm", "--shape", "m=64,n=48,k=80")
    assert run("best", *asked, "--json").json["device_model"] == "nvidia-a100"
    refused = run("tune", *asked, "--no-wait")
    assert refused.status == 4
    one_error_line(refused, "tilewright worker")


def test_a_serving_engines_file_gives_a_job_its_starts(run, tuned, tmp_path):
    file = tmp_path / "N=32,K=48,device_name=X.json"
    file.write_text('{"1": {"BM": 8, "num_warps": 4}, "64": {"BM": 16, "num_warps": 4}}')
    ran = run(*GEMM, "--start", str(file), "--rename", "BM=TILE_WIDTH", "--variant", "tiled", "--no-wait", "--json")
    assert [start["TILE_WIDTH"] for start in ran.json["job"]["starts"]] == [16, 8]
    assert "num_warps" in ran.err


def test_a_file_of_starts_that_is_not_json_is_one_line(run, tuned, tmp_path):
    (tmp_path / "starts.json").write_text("{")
    ran = run(*GEMM, "--start", str(tmp_path / "starts.json"))
    assert ran.status == 2
    one_error_line(ran, "--start")


def test_a_job_that_measured_nothing_says_how_its_first_trial_ended(run, tuned):
    queued = select(TuningJob.id).where(TuningJob.state == JobState.QUEUED)
    wrong = {"outcome": Outcome.WRONG_RESULT, "time_ms": None, "warm_ms": None, "log": "y is off by 3\nand so on"}
    with session_scope() as session:
        session.execute(delete(BestConfiguration))

    def fail_trial() -> int:
        with session_scope() as session:
            moved = update(Trial).where(queued.exists()).values(job_id=queued.scalar_subquery(), **wrong)
            return session.execute(moved).rowcount

    def end() -> None:
        until(fail_trial)
        end_queued(JobState.DONE)

    with ThreadPoolExecutor(1) as worker:
        ended = worker.submit(end)
        ran = run(*GEMM)
        ended.result()
    assert ran.status == 3
    assert "no configuration was measured: wrong_result: y is off by 3. See why: tilewright jobs trials" in ran.err


SHAPE = "m=1..24,n=16,k=20"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.in_turn(2)
def test_a_family_is_tuned_kept_and_shown(local, run):
    tuned = run(
        *("tables", "tune", "gemm", "--shape", SHAPE, "--device", "cpu", "--sizes", "2", "--trials", "2", "--json")
    )
    assert tuned.status == 0, tuned.err
    assert tuned.json["ranges"][0]["low"] == 1
    assert tuned.json["ranges"][-1]["high"] == 24
    model = tuned.json["device_model"]
    shown = run("tables", "show", "gemm", "--shape", SHAPE, "--device-model", model, "--json")
    assert shown.json == tuned.json
    text = run("tables", "show", "gemm", "--shape", SHAPE, "--device-model", model)
    assert "loss over the best" in text.out


def test_what_was_not_tuned_is_said_with_the_remedy(local, run):
    shown = run("tables", "show", "gemm", "--shape", "m=1..9,n=3,k=4", "--device-model", "nvidia-h200")
    assert shown.status == 3
    assert "tilewright tables tune gemm --shape m=1..9,n=3,k=4" in shown.err


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("m=1..9,n=1..3,k=4", "one axis must be a range"),
        ("m=9..1,n=3,k=4", "empty"),
        ("m=1..,n=3,k=4", "LOW..HIGH"),
        ("m=1..9,m=3,k=4", "twice"),
    ],
)
def test_a_shape_that_is_no_family_is_refused(local, run, shape, says):
    refused = run("tables", "tune", "gemm", "--shape", shape, "--device", "cpu")
    assert refused.status == 2
    assert says in refused.err


def test_what_a_job_found_is_shown_from_the_service(registered, run):
    with session_scope() as session:
        times = {TILED_16: {1: 1.0, 24: 2.0}, TILED_32: {1: 1.5, 24: 1.6}}
        Rows(session).table(
            {"m": "1..24", "n": 16, "k": 20}, [(1, 9, TILED_16), (10, 24, TILED_32)], times, model=PROCESSOR
        )
    asked = ("tables", "show", "gemm", "--shape", SHAPE, "--device-model", PROCESSOR.slug, "--from", "service")
    shown = run(*asked, "--json")
    assert [(one["low"], one["high"]) for one in shown.json["ranges"]] == [(1, 9), (10, 24)]
    text = run(*asked)
    assert "TILE_WIDTH=32" in text.out
    assert "loss over the best" in text.out
    missing = run(*asked[:3], "--shape", "m=1..24,n=17,k=20", *asked[5:])
    assert missing.status != 0
    assert "tilewright tune gemm --shape m=1..24,n=17,k=20" in missing.err


def test_a_job_and_a_schedule_take_a_range(registered, run):
    job = run("tune", "gemm", "--shape", SHAPE, "--no-wait", "--json")
    assert job.json["job"]["problem"]["shape"] == {"m": "1..24", "n": 16, "k": 20}
    listed = run("jobs", "list")
    assert "m=1..24,n=16,k=20" in listed.out
    refused = run("tune", "gemm", "--shape", SHAPE, "--variant", "naive", "--no-wait")
    assert refused.status == 2
    assert "is for a single problem" in refused.err
    schedule = ("schedules", "create", "rows", "--cron", "0 0 3 * * *", "--problem", f"gemm {SHAPE}", "--json")
    assert run(*schedule).json["problems"][0]["shape"] == {"m": "1..24", "n": 16, "k": 20}
    assert "m=1..24,n=16,k=20" in run("schedules").out


def test_tune_prints_the_table_of_its_job(registered, run):
    times = {TILED_16: {1: 1.0, 24: 2.0}}

    def end():
        with session_scope() as session:
            made = session.execute(update(TuningJob).where(TuningJob.state == "queued").values(state="done")).rowcount
            if made:
                Rows(session).table({"m": "1..24", "n": 16, "k": 20}, [(1, 24, TILED_16)], times, model=PROCESSOR)
        return made

    with ThreadPoolExecutor(1) as worker:
        ended = worker.submit(until, end)
        ran = run("tune", "gemm", "--shape", SHAPE)
        ended.result()
    assert ran.status == 0, ran.err
    assert "TILE_WIDTH=16" in ran.out
