"""`export`, `import` and `bundle` as they are typed: files and pipes, one line for what is refused."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import optuna
import pytest
from sqlalchemy import select
from test_commands import one_error_line

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.bundles.folder import sign
from tilewright.service.operations.claims.claims import report_claim
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.requests import ClaimRequest
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.session import session_scope


@pytest.fixture
def at_most_4096(registered, monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_MAX_IMPORT_BYTES", "4096")
    settings.cache_clear()


def test_a_file_goes_out_and_comes_in_again(run, tuned, tmp_path):
    path = tmp_path / "results.json"
    assert run("export", "--out", str(path)).status == 0
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
    packed = tmp_path / "results.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for file, added in ((path, 1), (packed, 0)):
        ran = run("import", str(file), "--origin", "lab-7", "--json")
        assert (ran.status, ran.json["best"]) == (0, added)
    assert ran.json["reasons"] == {"already-here": 2}


def test_an_export_to_a_pipe_is_the_document_and_nothing_else(run, tuned):
    ran = run("export", "--kernel", "gemm", "--trials")
    assert (ran.status, len(ran.json["studies"])) == (0, 1)


def test_a_study_is_written_for_other_tools(run, tuned, tmp_path):
    assert len(run("export", "--format", "t4", "--study", str(tuned)).json["results"]) == 1
    cache = run("export", "--format", "kernel-tuner", "--study", str(tuned)).out
    (tmp_path / "cache.json").write_text(cache)
    ran = run("import", str(tmp_path / "cache.json"), "--dry-run")
    assert ran.status == 0
    assert "1 studies, 1 trials, 0 best" in ran.out
    assert "nothing was stored" in ran.err


def test_a_study_becomes_an_optuna_storage(run, tuned, tmp_path):
    path = tmp_path / "study.db"
    assert run("export", "--format", "optuna", "--study", str(tuned), "--out", str(path)).status == 0
    assert [p.name for p in tmp_path.iterdir()] == ["study.db"]
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    [trial] = optuna.load_study(study_name=f"study {tuned}", storage=storage).trials
    storage.engine.dispose()
    assert (trial.state.name, trial.value) == ("COMPLETE", 2.0)
    assert trial.params == {"variant": "tiled", "TILE_WIDTH": 8}
    assert trial.user_attrs == {"outcome": "correct"}


def test_rows_that_are_left_out_are_named_with_their_reason(run, tuned, tmp_path):
    document = json.loads(run("export").out)
    document["studies"][0]["trials"][0]["bound_ratio"] = 3.0
    (tmp_path / "d.json").write_text(json.dumps(document))
    ran = run("import", str(tmp_path / "d.json"))
    assert ran.status == 1
    assert "1 not-verified, the first at /studies/0/trials/0" in ran.out
    assert ran.err == "error nothing was imported: 1 not-verified\n"


CACHE = {
    "device_name": "NVIDIA GeForce RTX 2080 Ti",
    "kernel_name": "GEMM",
    "problem_size": [4096, 4096, 4096],
    "tune_params_keys": ["tile_width"],
    "cache": {str(width): {"tile_width": width, "time": 400.0 / width} for width in (8, 16, 32)},
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("more", "model", "multiprocessors"),
    [
        ([], "nvidia-geforce-rtx-2080-ti", 68),
        (["--device-model", "RTX_2080_Ti"], "nvidia-geforce-rtx-2080-ti", 68),
        (["--device-model", "NVIDIA A100"], "nvidia-a100", 108),
        (
            ["--device-model", "Mine 1", "--limits", "compute_capability=8.0,multiprocessors=5,memory_gib=1"],
            "mine-1",
            5,
        ),
    ],
)
def test_a_cache_of_a_device_that_is_not_here_comes_in_by_one_command(
    run, registered, tmp_path, more, model, multiprocessors
):
    (tmp_path / "cache.json").write_text(json.dumps(CACHE))
    ran = run("import", str(tmp_path / "cache.json"), *more)
    assert (ran.status, ran.err) == (0, "")
    assert "1 studies, 3 trials" in ran.out
    with session_scope() as session:
        found = session.scalars(select(models.DeviceModel).where(models.DeviceModel.slug == model)).one()
    assert found.multiprocessors == multiprocessors


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("multiprocessors=5", ["compute_capability", "memory_gib"]),
        ("compute_capability=x,multiprocessors=5,memory_gib=1", ["number"]),
        ("compute_capability=6.0,multiprocessors=5,memory_gib=1", ["8.0"]),
        ("compute_capability=8.0,multiprocessors=0,memory_gib=1", ["range"]),
        ("compute_capability=8.0,multiprocessors=5,memory_gib=1,colour=red", ["clock_mhz"]),
    ],
)
def test_limits_that_are_not_are_one_line(run, registered, tmp_path, limits, words):
    (tmp_path / "cache.json").write_text(json.dumps(CACHE))
    ran = run("import", str(tmp_path / "cache.json"), "--device-model", "mine", "--limits", limits)
    assert ran.status == 2
    one_error_line(ran, *words)


def test_results_show_where_they_were_imported_from(run, tuned, tmp_path):
    document = json.loads(run("export").out)
    document["studies"][0]["problem"]["shape"]["m"] *= 2
    (tmp_path / "d.json").write_text(json.dumps(document))
    assert run("import", str(tmp_path / "d.json"), "--origin", "lab-7").status == 0
    assert "lab-7" in run("results").out
    shape = ",".join(f"{axis}={size}" for axis, size in document["studies"][0]["problem"]["shape"].items())
    assert "imported from lab-7" in run("best", "gemm", "--shape", shape).out


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (b"{", [], ["document", "line 1"]),
        (b'{"format": "tilewright/2"}', [], ["tilewright/2"]),
        (b'{"format": "tilewright/1"}', [], ["made_by"]),
        (b'{"a": NaN}', [], ["NaN"]),
        (b"\x1f\x8b\x08broken", [], ["d.json"]),
        (gzip.compress(b"{}", mtime=0)[:-4], [], ["incomplete", "ends too early"]),
        (gzip.compress(b" " * 5000, mtime=0), [], ["4096"]),
        (b" " * 5000, [], ["4096"]),
        (b"{}", ["--origin", "../x"], ["origin"]),
        (b"{}", ["--shape", "nonsense"], ["shape"]),
        (b'{"cache": {}, "tune_params_keys": []}', [], ["kernel"]),
    ],
)
def test_what_cannot_be_imported_is_one_line(run, at_most_4096, tmp_path, content, more, words):
    (tmp_path / "d.json").write_bytes(content)
    ran = run("import", str(tmp_path / "d.json"), *more)
    assert ran.status == 2
    one_error_line(ran, *words)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["export", "--format", "t4"], 2, ["--study"]),
        (["export", "--study", "1"], 2, ["--study"]),
        (["export", "--format", "optuna", "--study", "1"], 2, ["--out"]),
        (["export", "--format", "t4", "--study", "999"], 3, ["study"]),
        (["import", "/nonexistent.json"], 1, ["/nonexistent.json"]),
        (["export", "--format", "vllm"], 2, ["--kernel", "--out"]),
        (["export", "--format", "vllm", "--kernel", "gemm", "--out", "x"], 2, ["BLOCK_SIZE_M"]),
        (["bundle"], 2, ["--out"]),
        (["bundle", "--out", "x", "--check", "y"], 2, ["--out"]),
        (["bundle", "--out", "x", "--device-model", "nosuch"], 2, ["nosuch"]),
        (["bundle", "--check", "/nonexistent"], 1, ["SHA256SUMS"]),
    ],
)
def test_a_wrong_call_is_one_line(run, registered, arguments, status, words):
    ran = run(*arguments)
    assert ran.status == status
    one_error_line(ran, *words)


def test_bundles_are_written_and_checked(run, tuned, tmp_path):
    ran = run("bundle", "--out", str(tmp_path / "b"), "--sources")
    assert ran.status == 0
    (path,) = (tmp_path / "b").glob("*.json")
    assert json.loads(path.read_text())["device_model"]["slug"] == "cpu:test-processor"
    assert run("bundle", "--check", str(tmp_path / "b")).status == 0
    path.write_text(path.read_text().replace("2.0", "1.0"))
    ran = run("bundle", "--check", str(tmp_path / "b"))
    assert ran.status == 1
    one_error_line(ran, path.name)


def test_an_older_signed_folder_is_refused_until_it_is_allowed(run, tuned, tmp_path):
    key, public = (str(tmp_path / name) for name in ("key.pem", "key.pub"))
    for command in (["genpkey", "-algorithm", "ed25519", "-out", key], ["pkey", "-in", key, "-pubout", "-out", public]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    for name in ("old", "new"):
        assert run("bundle", "--out", str(tmp_path / name), "--sign", key).status == 0
    sums = tmp_path / "old" / "SHA256SUMS"
    sums.write_text("# made 2026-01-01T00:00:00Z\n" + sums.read_text().split("\n", 1)[1])
    sums.with_suffix(".sig").write_bytes(sign(sums.read_bytes(), Path(key)))

    def check(name, *more):
        return run("bundle", "--check", str(tmp_path / name), "--public-key", public, *more)

    assert [check(name).status for name in ("old", "new")] == [0, 0]
    ran = check("old")
    assert ran.status == 1
    one_error_line(ran, "2026-01-01T00:00:00Z", "--allow-older")
    assert [check("old", "--allow-older").status, check("old").status, check("new").status] == [0, 0, 0]


def test_a_failed_export_leaves_the_file_that_was_there(run, registered, tmp_path):
    path = tmp_path / "results.json"
    path.write_text("before")
    assert run("export", "--cursor", "!", "--out", str(path)).status == 2
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


@pytest.fixture
def asked(registered) -> str:
    """The device model; two problems were asked for on it."""
    with store_session.session_scope() as session:
        slug = session.connection().exec_driver_sql("SELECT slug FROM device_models").scalar_one()
        of = {m: RequestedProblem(slug, "gemm", (("m", m), ("n", 8), ("k", 8)), "float32", ()) for m in (8, 16)}
        demand.count(session, {of[8]: 1, of[16]: 2})
    return slug


def test_without_results_it_says_so(run, registered):
    assert run("results").status == 0
    assert run("results", "list", "--stale", "--json").json == []
    ran = run("results", "retract", "7", "--reason", "wrong")
    assert (ran.status, "result" in ran.err) == (3, True)
    assert run("results", "retract", "7").status == 2
    assert run("results", "list", "--limit", "0").status == 2


def test_attention_is_listed_with_its_reasons_and_the_most_worthwhile_tuned(run, asked):
    assert run("attention").out == ""  # of the CPU device, which stands in for a GPU
    with store_session.session_scope() as session:
        session.connection().exec_driver_sql("UPDATE device_models SET kind = 'cuda'")
    header, first, second = run("attention").out.splitlines()
    assert header.split("\t") == ["problem", "device", "requests", "may save", "why"]
    assert "m=16" in first
    assert first.endswith("requested: 2 times; answered with the kernel's default")
    assert "m=8" in second
    assert "Nothing needs attention." in run("attention", "list", "--kind", "failing").err
    (made,) = run("attention", "tune", "--kind", "requested", "--top", "1", "--trials", "5", "--json").json
    assert (made["problem"]["shape"]["m"], made["is_new"]) == (16, True)
    listed = run("attention", "list", "--kernel", "gemm", "--device-model", asked, "--json").json
    assert listed[0]["job_id"] == made["job_id"]
    assert run("attention", "tune", "--trials", "0").status == 2
    assert run("attention", "list", "--kind", "nothing").status == 2


def test_demand_is_listed_by_traffic_and_its_top_tuned(run, asked):
    assert [line.split("\t")[0] for line in run("demand").out.splitlines()] == ["requests", "2", "1"]
    listed = run("demand", "list", "--kernel", "gemm", "--device-model", asked, "--json").json
    assert [(one["problem"]["shape"]["m"], one["count"]) for one in listed] == [(16, 2), (8, 1)]
    (made,) = run("demand", "tune", "--top", "1", "--trials", "5", "--json").json
    assert (made["problem"]["shape"]["m"], made["is_new"]) == (16, True)
    assert run("jobs", "show", made["job_id"], "--json").json["budget"]["trials"] == 5
    ran = run("demand", "tune", "--trials", "0")
    assert (ran.status, "budget.trials" in ran.err) == (2, True)


def test_a_schedule_looks_for_problems_and_tells_what_came_of_them(run, asked):
    create = ("schedules", "create", "top", "--cron", "0 0 3 * * *", "--target", "demand", "--top", "1")
    made = run(*create, "--json").json
    assert (made["target"], made["top"], made["problems"]) == ("demand", 1, [])
    assert "demand, at most 1" in run("schedules").out
    assert "demand, at most 1" in run("schedules", "show", "top").out
    assert run("schedules", "comparisons", "top", "--json").json == []
    (job,) = run("schedules", "run", "top", "--json").json
    assert job["problem"]["shape"]["m"] == 16
    (open_one,) = run("schedules", "comparisons", "top", "--json").json
    assert (open_one["job_id"], open_one["verdict"]) == (job["id"], None)
    assert "open" in run("schedules", "comparisons", "top").out
    assert run("schedules", "comparisons", "top", "--verdict", "worse", "--json").json == []


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--target", "everything"], "--target"),
        (["--target", "stale", "--problem", "gemm m=8,n=8,k=8"], "problems"),
        (["--target", "stale", "--top", "1000"], "--top"),
        (["--target", "stale", "--kernel", "nosuch"], "kernel"),
    ],
)
def test_a_target_that_does_not_fit_is_a_usage_error(run, registered, more, word):
    ran = run("schedules", "create", "x", "--cron", "0 0 3 * * *", *more)
    assert (ran.status, word in ran.err) == (2, True), ran.err


def test_claims_are_listed_and_shown(run, registered):
    assert "No claims match." in run("claims").err
    assert run("claims", "list", "--state", "strange").status == 2
    assert run("claims", "show", "1").status == 3
    with store_session.session_scope() as session:
        slug = session.connection().exec_driver_sql("SELECT slug FROM device_models").scalar_one()
        request = ClaimRequest(
            kernel="gemm",
            shape={"m": 64, "n": 32, "k": 48},
            device_model=slug,
            driver="host",
            variant="tiled",
            configuration={"TILE_WIDTH": 16},
            source_hash=catalogue().get("gemm").source_hash("tiled"),
            seen="one row is wrong",
        )
        made, _ = report_claim(session, request)
    header, line = run("claims").out.splitlines()
    assert header.split("\t") == ["id", "state", "problem", "device", "variant", "seen"]
    assert line.split("\t")[:2] == [str(made.id), "open"]
    assert run("claims", "list", "--state", "open", "--json").json["items"][0]["seen"] == "one row is wrong"
    shown = run("claims", "show", str(made.id)).out
    assert "tiled TILE_WIDTH=16" in shown
    assert str(made.job_id) in shown
    assert run("claims", "show", str(made.id), "--json").json["state"] == "open"
