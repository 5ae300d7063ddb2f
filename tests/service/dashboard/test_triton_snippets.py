"""What a page shows of a Triton kernel's answer: a program for Triton, the values above the source, no CPU launch."""

from __future__ import annotations

import ast

from triton_kernels.scaled import CONFIGURATION, PROBLEM, scaled_in

from tilewright.service.dashboard.launch_snippets import launches
from tilewright.service.dashboard.snippets import triton_launch
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, ProblemAnswer
from tilewright.tuner.devices.device import Environment


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
