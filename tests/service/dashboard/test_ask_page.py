"""Asking on a page: the answer says how it was found, and what it shows can be used as it stands."""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import warnings

import numpy as np
import pytest
from factories import CPU, H100, NEW, OLD, SHAPE, TILED_32
from shipped_file import WORDS
from triton_kernels.scaled import CONFIGURATION, PROBLEM, scaled_in
from typer.main import get_command

from tilewright.kernels.space import Configuration
from tilewright.service.cli.application import program
from tilewright.service.dashboard.snippets import launches, triton_launch
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, ProblemAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.store import models
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.devices.device import Environment
from tilewright.tuner.runtime import UntunedWarning


def blocks(page: str) -> list[str]:
    """What the page offers to copy, in order."""
    return [html.unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)]


EXACT = "/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784"


def test_without_devices_it_says_to_start_a_worker(page):
    assert "tilewright worker" in page("/ask")


def test_without_a_shape_it_offers_the_example(page, commit):
    commit(lambda rows: rows.device())
    shown = page("/ask?kernel=gemv")
    assert "Every shape has an answer" in shown
    assert "shape=m%3D" in shown


def test_a_tuned_problem_is_answered_exactly_with_its_numbers(page, commit):
    commit(lambda rows: rows.best(time_ms=0.5, library_ms=0.75, configuration=TILED_32))
    shown = page(EXACT)
    for part in ("Exact:", "500\N{NO-BREAK SPACE}µs", "TILE_WIDTH=32", "cuBLAS 13.0", "trial 0"):
        assert part in shown
    assert "To know rather than to guess" not in shown


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D300,n%3D100,k%3D784", "Nearest:"),
        ("/ask?kernel=gemm&device_model=nvidia-h200&shape=300x100x784", "Nearest:"),
        ("/ask?kernel=gemm&device_model=nvidia-h100&shape=m%3D256,n%3D100,k%3D784", "Transferred:"),
        ("/ask?kernel=gemm&device_model=cpu%3Atest&shape=m%3D256,n%3D100,k%3D784", "Default:"),
    ],
)
def test_another_answer_says_how_it_was_found_and_how_to_know_better(page, commit, path, how):
    commit(lambda rows: [rows.best(), rows.device(H100), rows.device(CPU)])
    shown = page(path)
    assert how in shown
    assert any(block.startswith("tilewright tune gemm --shape m=") for block in blocks(shown))


def test_a_view_is_answered_with_the_best_of_dense_arrays_and_its_snippets_have_its_strides(page, commit):
    commit(lambda rows: rows.best(configuration=TILED_32))
    shown = page(EXACT + ",batch%3D4,lda%3D800,stride_b%3D0")
    assert "Nearest:" in shown
    code = next(block for block in blocks(shown) if "mem_alloc" in block)
    assert "strides (204800, 800, 1) in elements" in code
    assert f"mem_alloc({4 * 100 * 784})" in code  # one B for all products
    assert "lda=800,stride_b=0" in next(block for block in blocks(shown) if block.startswith("tilewright tune"))
    assert "must be from 784, the length of a stored row of A" in page(EXACT + ",lda%3D700", 422)


def test_the_curl_line_answers_with_the_same_configuration(client, page, commit):
    commit(lambda rows: rows.best(options={"trans_b": True}, configuration=TILED_32))
    line = next(block for block in blocks(page(EXACT + "&options=trans_b%3Dtrue")) if block.startswith("curl"))
    found = client.get(re.search(r"http://[^/]+(/[^' ]+)", line)[1]).json()
    assert (found["match"], found["configuration"]) == ("exact", {"TILE_WIDTH": 32})


def test_programs_are_python_and_name_every_argument(page, commit):
    commit(lambda rows: rows.best(configuration=TILED_32))
    programs = [block for block in blocks(page(EXACT)) if "import" in block and "def " not in block]
    assert len(programs) == 6
    for one in programs:
        ast.parse(one)
    launch = next(one for one in programs if "SourceModule" in one)
    assert re.search(r"gemm\(np.float32\([\d.]+\), A, B, np.float32\([\d.]+\), C, block=\(32, 32, 1\)", launch)
    for imported in ("torch", "cupy", "pycuda.autoinit  #", "numpy"):
        program = next(p for p in programs if f"import {imported}" in p and "tuner.runtime" in p)
        assert "best('gemm', m=256, n=100, k=784)" in program
        assert "launch(A, B, C)" in program


def test_the_launchers_program_runs_as_it_stands(page, commit, monkeypatch, tmp_path):
    """On the CPU device, with a transposed input: the program's arrays are what the launcher takes."""
    commit(lambda rows: rows.best())
    shown = page("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D17,n%3D5,k%3D9&options=trans_b%3Dtrue")
    program = next(b for b in blocks(shown) if "import numpy" in b and "tuner.runtime" in b and "pycuda" not in b)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))  # where no service runs
    names: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        exec(program, names)  # noqa: S102 - our own
    np.testing.assert_allclose(names["C"], names["A"] @ names["B"].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("device_model=nvidia-h200&shape=m%3D300,n%3D100,k%3D784", "gemm m=256,n=100,k=784 float32"),
        ("device_model=nvidia-h100&shape=m%3D256,n%3D100,k%3D784", "gemm m=256,n=100,k=784 float32 on nvidia-h200"),
    ],
)
def test_every_figure_of_a_neighbour_says_whose_it_is(page, commit, path, whose):
    commit(lambda rows: [rows.best(library_ms=2.0), rows.device(H100)])
    shown = page(f"/ask?kernel=gemm&{path}").replace("<wbr>", "")
    assert f"Measured with {whose}, not with this problem" in shown
    figures = shown.split("not with this problem</h3>")[1].split("</dl>")[0].split("<div>")[1:]
    assert len(figures) == 5
    assert all(f"of {whose}<" in figure for figure in figures)
    slug = re.search("device_model=([^&]+)", path)[1]
    assert f"on {slug}<" in shown.split('id="answer"')[1].split("</h2>")[0]
    assert any(block.startswith("tilewright tune") and f"--device-model {slug}" in block for block in blocks(shown))


def test_an_exact_figure_is_nobody_elses(page, commit):
    commit(lambda rows: rows.best(library_ms=2.0))
    assert "<small>of " not in page(EXACT)


def test_a_regressed_answer_says_so(page, commit):
    commit(lambda rows: [rows.best(time_ms=1.0, environment=OLD), rows.best(time_ms=1.5, environment=NEW)])
    assert "Regressed:</b> it takes \N{MULTIPLICATION SIGN}1.50 the time" in page(EXACT)


def test_the_button_requests_exactly_this_problem(client, page, commit):
    commit(lambda rows: rows.best(options={"trans_b": True}))
    shown = page(EXACT + "&options=trans_b%3Dtrue")
    body = json.loads(html.unescape(re.search(r'data-problem="([^"]+)"', shown)[1]))
    made = client.post("/v1/jobs", json=body | {"budget": {"trials": 5}})
    assert made.status_code == 202
    assert made.json()["problem"]["shape"] == {"m": 256, "n": 100, "k": 784}
    assert made.json()["problem"]["options"]["trans_b"] is True
    assert made.json()["device_model"] == "nvidia-h200"


def test_who_may_not_tune_is_told_which_key_to_use(commit, as_key):
    commit(lambda rows: rows.best())
    assert "with a key of the scope tune" in as_key(Scope.READ, EXACT).text
    assert 'id="tune-it"' in as_key(Scope.TUNE, EXACT).text


def test_a_program_of_several_launches_makes_them_in_order(page, commit):
    values = {"BLOCKS": 132, "TILE_M": 64, "TILE_N": 64, "CLUSTER": 1, "SPLIT_K": 1, "PROMOTE_K": 64, "GROUP_M": 8}
    commit(lambda rows: rows.best(configuration=Configuration.of("tensor3xfp16_sm90", values)))
    launch = next(block for block in blocks(page(EXACT)) if "SourceModule" in block)
    ast.parse(launch)
    assert re.findall(r"^(\w+)\(.*, workspace, block=", launch, re.MULTILINE) == ["gemm_survey", "gemm"]
    assert launch.count("set_attribute") == 1


def test_the_filled_source_compiles_as_it_stands(page, commit):
    commit(lambda rows: rows.best(configuration=TILED_32))
    source = blocks(page(EXACT))[-1]
    assert "#define TILE_WIDTH 32" in source
    compiled = compile_nvrtc(source, {}, "sm_90", "gemm")
    assert compiled.resources.registers


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("kernel=gemm&shape=m%3D0,n%3D1,k%3D1", "m"),
        ("kernel=gemm&shape=256", "name=value"),
        ("kernel=nothing&shape=m%3D1", "no kernel"),
        ("kernel=gemm&shape=m%3D1,n%3D1,k%3D1&device_model=nothing", "no device model"),
        ("kernel=gemm&shape=m%3D1,n%3D1,k%3D1&options=trans_q%3Dtrue", "trans_q"),
    ],
)
def test_a_question_that_is_wrong_says_why_and_keeps_what_was_typed(page, commit, query, says):
    commit(lambda rows: rows.device())
    shown = page(f"/ask?{query}", 422)
    assert says in shown.split('id="refusal"')[1].split("</p>")[0]
    assert f'value="{html.escape(re.search("shape=([^&]+)", query)[1].replace("%3D", "="))}"' in shown


@pytest.mark.in_turn(3)
@pytest.mark.usefixtures("shipped_records")
def test_an_answer_from_shipped_records_says_so_and_never_that_it_was_tuned_here(page, commit):
    commit(lambda rows: [rows.device(), rows.device(H100)])
    shown = page(EXACT)
    for part in (f"Predicted from {WORDS}.", "Expected, not measured", "cuBLAS 13.1, expected, not timed"):
        assert part in shown
    assert "Verified" not in shown
    elsewhere = page(EXACT.replace("nvidia-h200", "nvidia-h100"))
    assert f"Transferred from {WORDS}, for want of any of this device model." in elsewhere
    assert "not measured" in elsewhere


HISTORY = "/kernels/gemm/problem?shape=m%3D1,n%3D2,k%3D3"


def tuned(page: str) -> dict[str, str]:
    """The arguments of the page's command that tunes, which must be one that the command line takes."""
    (said,) = re.findall(r"<code>(tilewright tune .*?)</code></pre>", page)
    _, name, *words = shlex.split(html.unescape(said))
    command = get_command(program()).commands[name]
    return command.make_context(name, words).params


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("path", "kernel"),
    [
        ("/?kernel=softmax", "softmax"),
        ("/compare?kernel=softmax&a=nvidia-h200&b=nvidia-h200", "softmax"),
        ("/device-models/nvidia-h200?kernel=softmax", "softmax"),
        ("/device-models/nvidia-h200", "gemm"),
        ("/results?device_model=nvidia-h200", "gemm"),
    ],
)
def test_where_nothing_is_tuned_the_example_of_the_kernel_is_offered(page, commit, path, kernel):
    commit(lambda rows: [rows.device(), rows.device(H100)])
    found = tuned(page(path).split('id="jobs-title"')[0])
    assert found["kernel"] == kernel
    assert parse_shape(found["shape"]) == catalogue().get(kernel).example_shape
    assert found["device_model"] == "nvidia-h200" or path.startswith("/?")


@pytest.mark.parametrize("path", ["/?kernel=foreign", "/compare?kernel=foreign&a=nvidia-h200&b=nvidia-h200"])
def test_of_a_kernel_that_only_a_worker_has_no_command_is_offered(page, commit, path):
    def make(rows):
        rows.device()
        rows.session.add(models.Kernel(name="foreign", declaration={"axes": ["m"], "options": [], "variants": []}))

    commit(make)
    shown = page(path).split('id="jobs-title"')[0]
    assert "foreign" in shown
    assert "tilewright tune" not in shown


def test_a_problem_without_history_is_tuned_as_it_was_asked_for(page, commit):
    commit(lambda rows: [rows.device(), rows.device(H100)])
    path = f"{HISTORY}&dtype=float64&options=trans_a%3Dtrue,beta_zero%3Dfalse&device_model=nvidia-h100"
    found = tuned(page(path))
    assert parse_shape(found["shape"]) == {"m": 1, "n": 2, "k": 3}
    assert (found["dtype"], found["device_model"]) == ("float64", "nvidia-h100")
    asked = {"trans_a": True, "beta_zero": False}
    usual = {option.name: option.default for option in catalogue().get("gemm").options}
    assert parse_options(found["option"]) == {name: value for name, value in asked.items() if usual[name] != value}


def test_a_study_and_its_trials_go_on_with_their_problem(page, commit):
    study = commit(lambda rows: rows.trial_of(rows.best(SHAPE, options={"trans_b": True})).study_id)
    for path, variant in ((f"/studies/{study}", None), (f"/studies/{study}/trials/0", ["tiled"])):
        found = tuned(page(path))
        assert parse_shape(found["shape"]) == SHAPE
        assert parse_options(found["option"]) == {"trans_b": True}
        assert found["device_model"] == "nvidia-h200"
        assert (found["variant"] or None) == variant


def answer_of(kernel):
    problem = kernel.problem(PROBLEM.shape)
    launch = kernel.variants[0].launch(CONFIGURATION.values, problem)
    return BestAnswer.model_construct(
        problem=ProblemAnswer(**problem.as_json()),
        variant="blocks",
        configuration=dict(CONFIGURATION.items),
        launch=LaunchAnswer(grid=launch.grid, block=launch.block, shared_bytes=0),
    )


def test_the_program_launches_the_function_with_every_value(tmp_path):
    kernel = scaled_in(tmp_path)
    program = triton_launch(kernel, answer_of(kernel))
    ast.parse(program)
    assert "from scale import scale  # the source of this page, as scale.py" in program
    assert 'y = torch.zeros((100,), device="cuda", dtype=torch.float32)' in program
    assert "scale[(2, 1, 1)](x, y, 100, 1, 2.0, BLOCK=64, num_warps=2)" in program


def test_numpy_on_the_cpu_is_not_offered(tmp_path):
    assert list(launches(scaled_in(tmp_path), PROBLEM, "http://here")) == ["PyTorch", "CuPy", "PyCUDA"]


def test_results_name_triton_as_their_compiler():
    gpu = Environment("580.1", "13.0", "nvrtc", "13.0.88", "PyCUDA 2026.1", "default").with_triton("3.9.0")
    cpu = Environment("host", "host x86_64", "g++", "12.2.0", "host shim 1", "default").with_triton("3.9.0")
    assert (gpu.compiler, gpu.compiler_version, gpu.runtime) == ("triton", "3.9.0", "PyCUDA 2026.1")
    assert (cpu.compiler, cpu.compiler_version, cpu.runtime) == ("triton", "3.9.0", "interpreter")
