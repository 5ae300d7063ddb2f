"""`tilewright kernels check` and `new`: findings, JSON, exit codes; and such a kernel is served like any other."""

import re
import socket
import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.kernels.own import CAPABILITIES, own_kernel
from tilewright.service.cli.commands.own_kernels import TARGETS
from tilewright.service.cli.local import checks
from tilewright.service.cli.local.checks import Check, State
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations import registry
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.tuner.compile.compilation import arch_of
from tilewright.tuner.errors import NoCompilerError

EXAMPLE = Path(__file__).parents[3] / "examples/convolution2d"
QUICK = ("--no-compile", "--configurations", "1", "--shape", "h=5,w=9,r=3,s=3")


@pytest.fixture
def configured(monkeypatch, registered):
    """The API and the worker have the example's folder in their settings; its kernel is registered."""
    monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", f'["{EXAMPLE}"]')
    settings.cache_clear()
    registry.watched_catalogue.cache_clear()
    with store_session.session_scope() as session:
        registry.register_kernels(session, registry.catalogue())
    yield registered
    registry.watched_catalogue.cache_clear()


def test_the_targets_of_the_help_are_those_that_can_be_checked():
    assert tuple(arch_of(capability) for capability in CAPABILITIES) == TARGETS


def test_the_example_is_fit_and_needs_no_database(run, unreachable):
    ran = run("kernels", "check", str(EXAMPLE), *QUICK)
    assert ran.status == 0, ran.out + ran.err
    assert "direct\tfloat32\tsm_75\t600\t" in ran.out
    assert "convolution2d: no errors; 0 compiled," in ran.out
    assert "h=5,w=9,r=3,s=3" in ran.err


def test_a_folder_is_made_from_a_source_and_nothing_is_left_of_one_that_cannot_be(run, unreachable, tmp_path):
    source, target = tmp_path / "scale.cu", tmp_path / "made"
    source.write_text("#define BLOCK 64\n__global__ void scale(float* x, int n) { x[blockIdx.x * BLOCK] *= n; }\n")
    ran = run("kernels", "new", str(source), "--folder", str(target))
    assert ran.status == 0, ran.err
    assert "BLOCK (16, 32, 64, 128, 256)" in ran.out
    assert run("kernels", "check", str(target), "--no-compile", "--no-run").status == 0
    before = (target / "declaration.py").read_text()
    again = run("kernels", "new", str(source), "--folder", str(target))
    assert (again.status, "Name another folder with --folder" in again.err) == (1, True)
    assert (target / "declaration.py").read_text() == before
    source.write_text("#define get 64\n__global__ void scale(float* x, int n) { x[get] = n; }\n")
    broken = run("kernels", "new", str(source), "--folder", str(tmp_path / "other"))
    assert (broken.status, "the parameter 'get' must match" in broken.err) == (1, True)
    assert not (tmp_path / "other").exists()


def test_a_folder_has_the_projects_headers_a_free_name_and_a_note_of_headers_that_are_missing(
    run, unreachable, tmp_path
):
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "size.h").write_text("#include <vector>\nconst int SIZE = 64;\n")
    source, target = tmp_path / "gemm.cu", tmp_path / "made"
    source.write_text('#include "size.h"\n#include "timer.h"\n__global__ void gemm(float* x, int n) { x[n] = SIZE; }\n')
    ran = run("kernels", "new", str(source), "--folder", str(target), "--include", str(tmp_path / "headers"))
    assert (ran.status, "gemm_2" in ran.out) == (0, True), ran.err
    assert "not beside gemm.cu: timer.h. If the kernel needs them, name --include FOLDER" in ran.err
    assert (target / "size.h").read_text() == "\nconst int SIZE = 64;\n"
    without = run("kernels", "new", str(source), "--folder", str(tmp_path / "other"))
    assert "size.h, timer.h" in without.err


def test_a_triton_source_is_referred_to_its_page(run, unreachable):
    ran = run("kernels", "new", str(EXAMPLE.parent / "triton_softmax" / "softmax.py"))
    assert (ran.status, "docs/triton.md" in ran.err) == (1, True)


def test_the_report_as_json(run, unreachable):
    report = run("kernels", "check", str(EXAMPLE), "--no-compile", "--no-run", "--arch", "sm_90", "--json").json
    assert (report["ok"], report["kernel"], report["findings"]) == (True, "convolution2d", [])
    assert {(one["variant"], one["dtype"], one["target"]) for one in report["spaces"]} == {
        (variant, dtype, "sm_90") for variant in ("direct", "tiled") for dtype in ("float32", "float64")
    }
    assert all(0 < one["after"] <= one["before"] for one in report["spaces"])


def test_a_broken_declaration_is_one_finding_and_exit_code_1(run, unreachable, tmp_path):
    (tmp_path / "declaration.py").write_text("KERNEL = 1 / 0\n")
    ran = run("kernels", "check", str(tmp_path))
    assert ran.status == 1
    assert "error declaration: " in ran.out
    assert "importing it raised ZeroDivisionError" in ran.out
    report = run("kernels", "check", str(tmp_path), "--json")
    assert (report.status, report.json["ok"], len(report.json["findings"])) == (1, False, 1)


def test_a_name_of_ours_is_refused(run, unreachable, tmp_path):
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_text(path.read_text().replace("convolution2d(", "softmax("))
    declaration = tmp_path / "declaration.py"
    declaration.write_text(declaration.read_text().replace('name="convolution2d"', 'name="softmax"'))
    ran = run("kernels", "check", str(tmp_path), *QUICK)
    assert ran.status == 1
    assert "another kernel is called 'softmax'" in ran.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--arch", "sm_10"], "sm_75, sm_80"),
        (["--shape", "h=5"], "the axis w is missing"),
        (["--shape", "h=x"], "not a whole number"),
        (["--configurations", "0"], "--configurations"),
    ],
)
def test_wrong_arguments_are_exit_code_2(run, unreachable, more, said):
    ran = run("kernels", "check", str(EXAMPLE), *more)
    assert ran.status == 2, ran.out
    assert said in ran.err


def test_a_kernel_of_ones_own_is_shown_and_its_jobs_are_taken(run, configured):
    assert "convolution2d" in run("kernels").out
    assert "half a tile would not cover the image" in run("kernels", "show", "convolution2d").out
    assert "TILE_X_ROWS" in run("kernels", "source", "convolution2d", "--variant", "tiled").out
    shape = ("--shape", "h=5,w=9,r=3,s=3")
    assert "default match" in run("best", "convolution2d", *shape).out
    made = run("tune", "convolution2d", *shape, "--trials", "5", "--no-wait", "--json")
    assert made.status == 0, made.err
    job = made.json["job"]
    assert (job["problem"]["kernel"], job["state"]) == ("convolution2d", "queued")
    assert run("jobs", "show", job["id"], "--json").json["problem"]["shape"] == {"h": 5, "w": 9, "r": 3, "s": 3}


PAGE = Path(__file__).parents[3] / "docs/kernel-tuner.md"


def test_the_example_of_the_page_becomes_a_kernel_that_passes_its_check(run, unreachable, tmp_path, monkeypatch):
    (text,) = re.findall(r"`saxpy.py`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "saxpy.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    ran = run("kernels", "adopt", "saxpy.py")
    assert ran.status == 0, ran.err
    assert ran.out.split() == ["kernel", "saxpy", "then", "tilewright", "kernels", "check", "saxpy"]
    kernel = own_kernel(tmp_path / "saxpy")
    default = kernel.variants[0].space().default()
    assert dict(default.items) == {"block_size_x": 256, "tile": 1}
    checked = run("kernels", "check", "saxpy", "--no-compile", "--configurations", "1", "--shape", "n=77")
    assert checked.status == 0, checked.out
    assert "adopted\tfloat32\tsm_90\t16\t15" in checked.out


def test_calls_as_json_and_a_script_of_which_nothing_can_be_taken_over(run, unreachable, tmp_path):
    script = tmp_path / "host.py"
    script.write_text("from kernel_tuner import tune_kernel\ntune_kernel('f', 'void f() {}', 1, [], {}, lang='C')\n")
    ran = run("kernels", "adopt", str(script), "--folder", str(tmp_path / "made"), "--json")
    assert ran.status == 1
    refused = "its source is in another language; kernels in CUDA are taken over"
    call = {"call": 1, "kernel_name": "f", "folder": None, "refused": refused, "notes": []}
    assert ran.json == {"notes": [], "calls": [call]}
    assert ran.err.splitlines() == [f"error {script}: none of its 1 calls could be taken over"]
    assert not (tmp_path / "made").exists()


def test_a_script_that_is_not_there_is_a_wrong_argument(run, unreachable, tmp_path):
    ran = run("kernels", "adopt", str(tmp_path / "none.py"))
    assert (ran.status, ran.err.startswith("error there is no script")) == (2, True)


HERE = sys.version_info[:2]
OLDER, NEWER = (HERE[0], HERE[1] - 1), (HERE[0], HERE[1] + 1)


@pytest.mark.parametrize(
    ("supported", "state"),
    [
        ((HERE, HERE), State.OK),
        ((OLDER, NEWER), State.OK),
        ((NEWER, NEWER), State.BROKEN),
        ((OLDER, OLDER), State.BROKEN),
    ],
)
def test_python_is_one_of_the_supported_versions(monkeypatch, supported, state):
    monkeypatch.setattr(checks, "SUPPORTED", supported)
    found = checks.python()
    assert (found.state, found.remedy is None) == (state, state is State.OK)


@pytest.mark.parametrize(
    ("check", "otherwise"), [(checks.data_folder, State.BROKEN), (checks.cache_folder, State.ABSENT)]
)
@pytest.mark.parametrize("free_bytes", [None, checks.MIN_FREE_BYTES - 1, checks.MIN_FREE_BYTES])
def test_folders_can_be_written_and_have_a_gigabyte(monkeypatch, tmp_path, check, otherwise, free_bytes):
    folder = tmp_path / "made" / "cubins"
    if free_bytes is None:
        (tmp_path / "made").write_text("a file")
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(folder))
    settings.cache_clear()
    monkeypatch.setattr(checks.cache, "default_folder", lambda: folder / "kernels")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    found = check()
    settings.cache_clear()
    is_right = free_bytes == checks.MIN_FREE_BYTES
    assert (found.state, found.remedy is None) == (State.OK if is_right else otherwise, is_right)
    assert found.found == f"{folder}, 1.1 GB free" or not is_right


@pytest.mark.parametrize(("gpus", "pycuda", "nvrtc", "nvcc", "compiler"), [*product((False, True), repeat=5)])
def test_a_device_can_measure_where_it_has_all_it_needs(gpus, pycuda, nvrtc, nvcc, compiler):
    there = {"GPUs": gpus, "PyCUDA": pycuda, "NVRTC": nvrtc, "nvcc": nvcc, "C++ compiler": compiler}
    found = checks.device(
        {n: Check(name=n, state=State.OK if has else State.ABSENT, found="", remedy=n) for n, has in there.items()}
    )
    if gpus and pycuda and (nvrtc or nvcc):
        assert found.found == "the GPUs"
    else:
        needs = " and ".join(name for name in ("PyCUDA", "NVRTC") if not there[name])
        reason = f" (the GPUs need {needs})" if gpus else ""
        assert found.found == f"{'the CPU' if compiler else 'none'}{reason}"
    assert found.state is (State.BROKEN if found.found.startswith("none") else State.OK)
    lacking = "PyCUDA" if gpus else "C++ compiler"
    assert found.remedy == (lacking if found.state is State.BROKEN else None)


@pytest.mark.parametrize(
    ("driver", "hidden", "has_remedy"), [(None, True, False), ("580", False, False), ("580", True, True)]
)
def test_gpus_that_a_variable_hides_are_told(monkeypatch, driver, hidden, has_remedy):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(checks.nvml, "gpus", list)
    monkeypatch.setattr(checks.nvml, "driver_version", lambda: driver)
    found = checks.gpus()
    assert (found.state, found.found, found.remedy is not None) == (State.ABSENT, "none", has_remedy)
    named = checks.driver()
    assert (named.state, named.remedy is None) == ((State.OK, True) if driver else (State.ABSENT, False))
    monkeypatch.setattr(
        checks.nvml, "gpus", lambda: [SimpleNamespace(ordinal=1, name="NVIDIA H200", memory_bytes=150_754_820_096)]
    )
    assert (checks.gpus().state, checks.gpus().found) == (State.OK, "cuda:1 NVIDIA H200, 151 GB")


@pytest.mark.parametrize(
    ("check", "of", "name", "answer"),
    [
        (checks.nvrtc_compiler, checks.nvrtc, "version", "13.0"),
        (checks.nvcc_compiler, checks.compilation, "compiler_version", "13.0"),
        (
            checks.host_compiler,
            checks.cpu_compile,
            "find_compiler",
            SimpleNamespace(name="g++", version="12", command=["g++"]),
        ),
    ],
)
def test_a_compiler_that_is_not_here_is_absent(monkeypatch, check, of, name, answer):
    monkeypatch.setattr(of, name, lambda *_: answer)
    assert (check().state, check().remedy) == (State.OK, None)

    def missing(*_):
        raise NoCompilerError("install one")

    monkeypatch.setattr(of, name, missing)
    assert (check().state, check().remedy[-11:]) == (State.ABSENT, "install one")


@pytest.mark.parametrize("is_embedded", [False, True])
@pytest.mark.parametrize(("fails", "at_head"), [(True, True), (False, True), (False, False)])
def test_a_database_answers_and_has_todays_tables(monkeypatch, is_embedded, fails, at_head):
    server = SimpleNamespace(home="/here", running=lambda: True) if is_embedded else None
    monkeypatch.setattr(checks, "embedded_server", lambda: server)

    def answering():
        if fails:
            raise DatabaseUnavailableError("no\n  answer")
        return nullcontext()

    monkeypatch.setattr(checks, "database_url", answering)
    monkeypatch.setattr(checks.schema, "at_head", lambda: at_head)
    found = checks.database()
    assert (found.state, found.remedy is None) == ((State.BROKEN, False) if fails else (State.OK, True))
    kind = "embedded, in /here: " if is_embedded else "the one at TILEWRIGHT_DATABASE_URL: "
    assert found.found.startswith(kind)
    assert ("run tilewright db upgrade" in found.found) is not at_head
    if fails:
        assert "answer" in found.found
        assert "\n" not in found.found
        assert ("TILEWRIGHT_DATABASE_URL" in found.remedy) is not is_embedded


def test_a_port_is_free_or_taken_by_somebody_else(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("TILEWRIGHT_PORT", str(taken.getsockname()[1]))
        settings.cache_clear()
        monkeypatch.setattr(checks.Client, "is_ready", lambda _: False)
        found = checks.port()
        assert (found.state, found.remedy is None) == (State.BROKEN, False)
        monkeypatch.setattr(checks.Client, "is_ready", lambda _: True)
        assert "already serves there" in checks.port().found
    assert checks.port().found.endswith("is free")
    settings.cache_clear()
