"""`tables`: a family tuned on the CPU device, shown again, what is refused; `tune` and schedules of ranges."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from factories import PROCESSOR, TILED_16, TILED_32, Rows
from sqlalchemy import update
from waiting import until

from tilewright.service.store.models import TuningJob
from tilewright.service.store.session import session_scope

SHAPE = "m=1..24,n=16,k=20"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


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
