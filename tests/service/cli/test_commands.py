import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from tilewright.service.cli.commands import jobs
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Device, TuningJob

GEMM = ("tune", "gemm", "--shape", "m=64,n=32,k=48")


def one_error_line(ran, *words):
    """The only thing said is one line with these words, and no traceback."""
    assert ran.out == ""
    assert ran.err.startswith("error ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], ["nosuch", "--help"]),
        (["tune"], ["KERNEL"]),
        (["tune", "gemm"], ["--shape"]),
        (["tune", "gemm", "--shape", "m=256"], ["shape.n", "Example"]),
        (["tune", "gemm", "--shape", "m=0,n=1,k=1"], ["shape.m", "1 to"]),
        (["tune", "gemm", "--shape", "m=-5,n=1,k=1"], ["shape.m"]),
        (["tune", "gemm", "--shape", "m=1,n=1,k=1,q=1"], ["shape.q", "m, n, k"]),
        (["tune", "gemm", "--shape", "m:1"], ["shape", "name=value"]),
        (["tune", "gem", "--shape", "m=1"], ["gem", "gemm"]),
        ([*GEMM, "--dtype", "int8"], ["dtype", "float32"]),
        ([*GEMM, "--option", "trans_q=true"], ["options.trans_q", "trans_a"]),
        ([*GEMM, "--option", "trans_a=perhaps"], ["options.trans_a", "true"]),
        ([*GEMM, "--trials", "many"], ["--trials"]),
        ([*GEMM, "--compiler", "gcc"], ["nvrtc"]),
        ([*GEMM, "--priority", "1000"], ["--priority"]),
        (["up", "--shape", "m=1"], ["--tune"]),
        (["up", "--again"], ["--tune"]),
        (["up", "--tune", "nosuch"], ["nosuch", "gemm"]),
        (["up", "--tune", "gemm", "--seconds", "-1"], ["budget.seconds"]),
        (["jobs", "show", "17"], ["17", "Example"]),
        (["worker", "--name", "second"], ["--name", "--device cpu"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, unreachable, arguments, words):
    ran = run(*arguments)
    assert ran.status == 2
    one_error_line(ran, *words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--trials", "0"], ["budget.trials", "greater than 0"]),
        (["--seconds", "nan"], ["budget.seconds"]),
        (["--target-ms", "-1"], ["budget.target_ms"]),
        (["--trials", "100001"], ["budget.trials", "100000"]),
        (["--variant", "nosuch"], ["variants", "tiled"]),
        (["--device-model", "nvidia-nosuch"], ["device_model", "cpu:test-processor"]),
        (["--device", "GPU-0000"], ["device", "CPU-1"]),
        (["--compiler", "nvrtc"], ["compiler"]),
    ],
)
def test_what_only_the_service_can_judge_is_refused_and_nothing_is_stored(run, registered, more, words):
    ran = run(*GEMM, *more)
    assert ran.status == 2
    one_error_line(ran, *words)
    with store_session.session_scope() as session:
        assert session.scalars(select(TuningJob)).all() == []


def test_a_matrix_larger_than_the_device_is_refused(run, registered):
    ran = run("tune", "gemm", "--shape", "m=100000,n=100000,k=8")
    assert ran.status == 2
    one_error_line(ran, "shape", "bytes")


def test_without_any_device_the_exit_code_is_4_and_the_remedy_is_said(run, local):
    for arguments in (GEMM, (*GEMM, "--device", "cpu"), ("best", "gemm", "--shape", "m=1,n=1,k=1")):
        ran = run(*arguments)
        assert ran.status == 4
        one_error_line(ran, "tilewright worker")


def test_what_is_not_there_is_exit_code_3(run, local):
    ran = run("jobs", "show", "0198c0de-0000-7000-8000-000000000000")
    assert ran.status == 3
    one_error_line(ran, "job")


def test_a_database_that_is_away_is_one_line_and_a_traceback_only_when_asked_for(run, unreachable, monkeypatch):
    ran = run("jobs")
    assert ran.status == 1
    one_error_line(ran)
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(Exception, match="refused"):
        run("jobs")


def test_a_wrong_setting_is_named_as_it_is_set(run, unreachable, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_PORT", "eighty")
    settings.cache_clear()
    ran = run("jobs")
    assert ran.status == 2
    one_error_line(ran, "TILEWRIGHT_PORT", "eighty")


def test_a_wrong_trial_is_listed_with_what_is_wrong():
    log = "2 components are out of bounds, first at (5, 7): got nan, expected 1.5; worst error is inf of its bound"
    trial = SimpleNamespace(
        number=3, outcome="wrong_result", time_ms=None, gflops=None, registers=None, variant="naive", log=log
    )
    trial.configuration = {"BLOCK_X": 8}
    assert jobs._trial_row(trial) == (3, "wrong_result", None, None, None, "naive BLOCK_X=8", log)
    trial.log = "1 warning\naxpy.cu(3): error: expected a ;\n"
    assert jobs._trial_row(trial)[-1] == "axpy.cu(3): error: expected a ;"


def test_a_job_is_queued_shown_listed_and_cancelled(run, registered):
    made = run(*GEMM, "--trials", "7", "--option", "trans_b=true", "--priority", "3", "--no-wait", "--json")
    assert made.status == 0
    job = made.json["job"]
    assert job["budget"]["trials"] == 7
    assert job["problem"]["options"]["trans_b"] is True
    assert run("jobs", "show", job["id"], "--json").json["id"] == job["id"]
    assert [one["id"] for one in run("jobs", "--json").json["items"]] == [job["id"]]
    assert [one["id"] for one in run("jobs", "list", "--state", "queued", "--json").json["items"]] == [job["id"]]
    assert run("jobs", "list", "--state", "done", "--json").json["items"] == []
    assert run("jobs", "trials", job["id"], "--json").json["items"] == []
    assert run("jobs", "cancel", job["id"], "--json").json["state"] == "cancelled"
    shown = run("jobs", "show", job["id"])
    assert "cancelled" in shown.out
    assert "trans_b=true" in shown.out


def test_text_in_a_pipe_is_lines_with_tabs(run, registered):
    run(*GEMM, "--no-wait")
    lines = run("jobs").out.splitlines()
    assert lines[0].split("\t") == ["id", "state", "problem", "device", "trials", "best ms"]
    assert lines[1].split("\t")[1:4] == ["queued", "gemm m=64,n=32,k=48 float32", "cpu:test-processor"]


def test_an_identical_open_job_is_joined(run, registered):
    first = run(*GEMM, "--no-wait", "--json").json["job"]
    second = run(*GEMM, "--no-wait", "--json")
    assert second.json["job"]["id"] == first["id"]
    assert "joined" in second.err


def test_tune_says_when_no_worker_is_running(run, registered):
    with store_session.session_scope() as session:
        session.scalars(select(Device)).one().heartbeat_at -= timedelta(hours=1)
    ran = run(*GEMM, "--no-wait")
    assert ran.status == 0
    assert "no worker is running" in ran.err
    assert "tilewright worker" in ran.err


def test_best_of_an_untuned_problem_is_the_default_and_says_so(run, registered):
    ran = run("best", "gemm", "--shape", "m=64,n=32,k=48", "--json")
    assert ran.status == 0
    assert ran.json["match"] == "default"
    assert ran.json["time_ms"] is None
    text = run("best", "gemm", "--shape", "m=64,n=32,k=48").out
    assert "not measured" in text
    assert "default match" in text


def test_best_on_an_unknown_model_is_a_usage_error(run, registered):
    ran = run("best", "gemm", "--shape", "m=64,n=32,k=48", "--device-model", "nosuch")
    assert ran.status == 2
    one_error_line(ran, "nosuch", "cpu:test-processor")


def test_devices_of_this_machine_and_of_others_are_listed(run, registered):
    ran = run("devices", "--json")
    assert ran.status == 0
    assert "cpu" in [one["name"] for one in ran.json["here"]]
    assert [one["uuid"] for one in ran.json["registered"]] == ["CPU-1"]
    assert "on elsewhere\tCPU-1\tcpu:test-processor\trunning" in run("devices").out


def test_kernels_are_listed_shown_and_printed(run, local):
    assert {"gemm", "gemv"} <= {one["name"] for one in run("kernels", "--json").json}
    shown = run("kernels", "show", "gemm").out
    assert "tilewright tune gemm --shape" in shown
    assert "TILE_M" in shown
    assert "with a cold L2 cache for at most 64 rows of a half type" in shown
    source = run("kernels", "source", "gemm", "--variant", "naive").out
    assert 'extern "C"' in source
    assert run("kernels", "source", "gemm", "--variant", "naive", "--json").json["source"] == source


@pytest.mark.parametrize("arguments", [["kernels", "show", "gem"], ["kernels", "source", "gemm", "--variant", "x"]])
def test_an_unknown_kernel_or_variant_is_a_usage_error_that_lists_the_known(run, local, arguments):
    ran = run(*arguments)
    assert ran.status == 2
    one_error_line(ran, "Known")


def test_the_database_is_upgraded_once(run, empty_database_url, use_database):
    use_database(empty_database_url)
    assert run("jobs").status == 1
    assert run("db", "current").status == 1
    assert run("db", "upgrade", "--json").json == {"at_head": True, "changed": True}
    assert run("db", "upgrade", "--json").json == {"at_head": True, "changed": False}
    assert run("db", "current").status == 0


def test_the_last_step_of_the_tables_is_reverted_and_everything_else_stays(run, use_database, empty_database_url):
    use_database(empty_database_url)
    assert run("db", "upgrade").status == 0
    assert run("keys", "create", "ci").status == 0
    asked = run("db", "downgrade")
    assert (asked.status, run("db", "current").status) == (2, 0)
    assert f"reverts {schema.head()}: " in asked.err
    assert run("db", "downgrade", "--yes", "--json").json["reverted"].startswith(schema.head())
    assert run("db", "current").status == 1
    assert "tilewright db upgrade" in run("db", "downgrade", "--yes").err, "one step only"
    assert run("db", "upgrade").status == 0
    schema.check(empty_database_url)
    assert [one["name"] for one in run("keys", "list", "--json").json["items"]] == ["ci"]


def test_a_project_is_created_changed_and_listed_with_its_keys(run, use_database, empty_database_url):
    use_database(empty_database_url)
    assert run("db", "upgrade").status == 0
    made = run("projects", "create", "vision", "--max-open-jobs", "3", "--max-schedules", "2", "--json").json
    assert (made["name"], made["max_open_jobs"], made["max_queued_seconds"]) == ("vision", 3, None)
    changed = run("projects", "set", "vision", "--max-schedules", "0", "--max-queued-seconds", "60", "--json").json
    assert (changed["max_open_jobs"], changed["max_queued_seconds"], changed["max_schedules"]) == (3, 60, None)
    assert run("keys", "create", "v", "--project", "vision").status == 0
    assert [one["project"] for one in run("keys", "list", "--json").json["items"]] == ["vision"]
    listed = run("projects").out
    for words in ("vision", "0 of 3", "at most 60", "default"):
        assert words in listed, words
    refused = run("keys", "create", "w", "--project", "nobody")
    assert (refused.status, "known: default, vision" in refused.err) == (2, True)


def test_a_password_in_the_address_is_not_shown(run, use_database):
    use_database("postgresql://me:se%20cret@db.example/tw")
    assert run("db", "url").out == "postgresql://me:***@db.example/tw\n"


def test_version_and_help_go_to_stdout(run):
    assert run("--version").out.startswith("tilewright ")
    ran = run()
    assert ran.status == 0
    for command in ("up", "serve", "worker", "tune", "best", "jobs", "devices", "kernels", "doctor", "db"):
        assert command in ran.out


@pytest.mark.parametrize("words", [(), ("tune",), ("kernels", "check")])
def test_help_shows_no_value_for_flags(run, words):
    shown = run(*words, "--help").out
    assert "--help" in shown
    assert "<bool>" not in shown


def test_json_has_no_colour_on_a_terminal(run, local, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert json.loads(run("kernels", "--json").out)
