"""What pages offer to copy: commands as the command line takes them, programs for Triton kernels."""

from __future__ import annotations

import ast
import html
import re
import shlex

import pytest
from factories import H100, SHAPE
from triton_kernels.scaled import CONFIGURATION, PROBLEM, scaled_in
from typer.main import get_command

from tilewright.service.cli.application import program
from tilewright.service.dashboard.snippets import launches, triton_launch
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, ProblemAnswer
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.store import models
from tilewright.tuner.devices.device import Environment

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
