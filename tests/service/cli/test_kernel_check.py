"""`tilewright kernels check` and `new`: findings, JSON, exit codes; and such a kernel is served like any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.kernels.own import CAPABILITIES, own_kernel
from tilewright.service.cli.commands.own_kernels import TARGETS
from tilewright.service.operations import registry
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.tuner.compile.compilation import arch_of

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
