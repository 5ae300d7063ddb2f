"""Launches of Triton functions become kernels, and what is tuned takes the place of `triton.autotune`'s search.

Triton's interpreter launches here: tests/gpu/test_triton_capture_cuda.py has the same on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.kernels.own import limits_of, own_kernel
from tilewright.tuner.adopt.adopt import Adopted
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import CaptureError, capture
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.triton_process import compiled_apart
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place

pytest.importorskip("triton")
pytest.importorskip("torch")

APP = Path(__file__).parent / "triton_app.py"


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield capture([sys.executable, str(APP)], tmp_path_factory.mktemp("triton") / "seen")


@pytest.fixture(scope="module")
def adopted(captured, tmp_path_factory):
    """A folder of each kernel."""
    target = tmp_path_factory.mktemp("made")
    names = ("matmul", "softmax", "summed", "masked", "doubled")
    return {name: adopt_launch(captured, name, target=target) for name in names}


def kernel_of(adopted: Adopted):
    return own_kernel(adopted.folder)


def default_is_right(kernel, shape):
    """Whether the default and the last configuration compute the same, on the CPU."""
    device, problem = CpuDevice(), kernel.problem(shape)
    bench = device.bench(kernel, problem, seed=1)
    try:
        space = kernel.space(problem, device.model.limits)
        chosen = [kernel.default_configuration(space), space.feasible[0]]
        return [bench.verify(bench.compile(one)).is_right for one in chosen]
    finally:
        bench.close()
        device.close()


def test_launches_of_the_program_are_counted_and_those_of_a_search_are_not(captured):
    calls = {row["name"]: row["calls"] for row in captured.launches}
    once = ("matmul", "matmul_2", "summed", "masked", "masked_2", "doubled", "doubled_2")
    assert calls == dict.fromkeys(once, 1) | {"softmax": 3}
    assert sum(row["share"] for row in captured.launches) == pytest.approx(1)
    matmul = captured.launch("matmul")
    assert matmul["constexprs"]["BLOCK_M"] == 32
    assert matmul["arguments"][1]["strides"] == [1, matmul["arguments"][1]["shape"][0]]


def test_the_source_is_one_file_with_what_it_calls(captured):
    source = captured.launch("matmul")["source"]
    assert "LEAK = tl.constexpr(0.5)" in source
    assert source.index("def leaky(x)") < source.index("def matmul(")
    assert "autotune" not in source
    assert "SCALE_LOG2" not in source


def test_axes_grid_and_strides_follow_from_sizes_that_varied(adopted):
    kernel = kernel_of(adopted["matmul"])
    assert kernel.axes == ("m", "n", "k")
    problem = kernel.problem({"m": 100, "n": 70, "k": 33})
    layouts = {tensor.name: tensor.layout(problem) for tensor in kernel.tensors}
    assert (layouts["a_ptr"].shape, layouts["b_ptr"].strides) == ((100, 33), (1, 33))
    [variant] = kernel.variants
    assert variant.launch(variant.space().default().values, problem).grid == (4 * 5, 1, 1)
    assert {tensor.name: tensor.role for tensor in kernel.tensors} == {
        "a_ptr": "input",
        "b_ptr": "input",
        "c_ptr": "output",
    }


def test_parameters_are_those_of_the_configurations_and_more(adopted):
    kernel = kernel_of(adopted["matmul"])
    values = {parameter.name: parameter.values for parameter in kernel.variants[0].parameters}
    assert values["BLOCK_M"] == (16, 32, 64)
    assert values["num_stages"] == (2, 3, 4, 5)
    assert dict(kernel.variants[0].space().default().items) == {
        "BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP": 4, "num_warps": 8, "num_stages": 4,
    }  # fmt: skip
    assert kernel.verified == "against the kernel's default configuration, not a reference"


def test_heuristics_and_what_the_call_gives_are_compiled_in(adopted):
    kernel = kernel_of(adopted["matmul"])
    default = kernel.variants[0].space().default()
    even, odd = ({"m": 64, "n": 64, "k": k} for k in (64, 65))
    assert kernel.definitions(kernel.problem(even), default)["EVEN_K"] == "True"
    assert kernel.definitions(kernel.problem(odd), default)["EVEN_K"] == "False"
    assert kernel.definitions(kernel.problem(odd), default)["ACTIVATION"] == "'leaky'"
    softmax = kernel_of(adopted["softmax"])
    problem = softmax.problem({"out_0": 5, "n_cols": 130})
    assert softmax.definitions(problem, softmax.variants[0].space().default())["BLOCK_SIZE"] == "256"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("matmul", {"m": 33, "n": 17, "k": 40}),
        ("softmax", {"out_0": 3, "n_cols": 70}),
        ("summed", None),
        ("masked", {"n": 70, "rows": 2}),
    ],
)
def test_adopted_kernels_compute_alike_in_other_configurations(adopted, name, shape):
    kernel = kernel_of(adopted[name])
    assert default_is_right(kernel, shape or kernel.example_shape)[0]


def test_a_configuration_that_computes_something_else_is_found(adopted):
    """`ATOMIC` false keeps the last block's part alone: the program's own pruning takes it out."""
    kernel = kernel_of(adopted["summed"])
    values = {parameter.name: parameter.values for parameter in kernel.variants[0].parameters}
    assert (values["ATOMIC"], values["B"]) == ((0, 1), (32, 64, 128))
    assert default_is_right(kernel, kernel.example_shape) == [True, False]


def test_what_the_function_asserts_is_a_constraint(adopted):
    kernel = kernel_of(adopted["summed"])
    space = kernel.space(kernel.problem(kernel.example_shape), CpuDevice().model.limits)
    found = {(of["B"], of["ATOMIC"]) for of in (dict(one.items) for one in space.feasible)}
    assert found == {(32, 0), (64, 0), (32, 1), (64, 1), (128, 1)}


def test_the_length_of_a_range_beside_its_size_is_a_power_of_two(adopted):
    kernel = kernel_of(adopted["doubled"])
    default = kernel.variants[0].space().default()
    for width, length in ((32, "32"), (100, "128")):
        problem = kernel.problem({"width": width})
        assert kernel.definitions(problem, default)["LENGTH"] == length
    assert default_is_right(kernel, {"width": 100})[0]


def test_inputs_are_like_those_of_the_program(adopted):
    kernel = kernel_of(adopted["summed"])
    arrays = kernel.inputs(kernel.problem(kernel.example_shape), np.random.default_rng(1))
    assert arrays["places"].min() >= 0
    assert 250 < arrays["places"].max() < 300
    assert arrays["total"].tolist() == [0]


def test_they_compile_for_a_gpu(adopted):
    kernel = kernel_of(adopted["matmul"])
    space = kernel.space(kernel.problem({"m": 64, "n": 64, "k": 70}), limits_of((9, 0)))
    work = Compilation.of(kernel, space.problem, kernel.default_configuration(space), "sm_90", "nvrtc")
    assert compiled_apart(work).resources.registers > 0


def test_truth_values_gaps_none_and_types_are_taken_over(adopted):
    kernel = kernel_of(adopted["masked"])
    problem = kernel.problem({"n": 50, "rows": 3})
    arguments = {one.name: one for one in kernel.arguments}
    assert [*arguments] == ["x", "mask", "out", "n", "stride"]
    assert arguments["x"].layout(problem).strides == (100, 1)
    assert (arguments["mask"].dtype, arguments["mask"].triton) == ("uint8", "i1")
    definitions = kernel.definitions(problem, kernel.variants[0].space().default())
    assert (definitions["bias"], definitions["KIND"], definitions["ROWS"]) == ("None", "fp16", "3")


def test_contents_on_request_are_inputs_and_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    seen = capture([sys.executable, str(APP)], tmp_path / "seen", limit_bytes=1 << 22)
    kernel = kernel_of(adopt_launch(seen, "softmax", target=tmp_path / "made"))
    assert kernel.verified is None
    arrays = kernel.inputs(kernel.problem(kernel.example_shape), np.random.default_rng(1))
    exponents = np.exp(arrays["x"] - arrays["x"].max(axis=1, keepdims=True))
    right = np.load(kernel.folder / "answer_out.npy")
    np.testing.assert_allclose(exponents / exponents.sum(axis=1, keepdims=True), right, rtol=1e-5)


def test_what_is_tuned_takes_the_place_of_the_search(adopted, tmp_path):
    """`tilewright run`, without a change of the program."""
    kernel = kernel_of(adopted["matmul"])
    values = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP": 8, "num_warps": 16, "num_stages": 2}
    answers = AnswerCache(tmp_path / "cache" / "answers")
    for shape in ((64, 48, 80), (32, 96, 64)):
        known = {"variant": "adopted", "configuration": values, "match": "exact"}
        problem = kernel.problem(dict(zip("mnk", shape, strict=True)))
        answers.put(problem, host_place(), known | {"source_hash": kernel.source_hash("adopted")})
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "TILEWRIGHT_KERNEL_FOLDERS": str(adopted["matmul"].folder),
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "TILEWRIGHT_DATA_DIR": str(tmp_path),
        "TILEWRIGHT_URL": "",
    }
    command = [sys.executable, "-m", "tilewright.service.cli", "run", "--", sys.executable, str(APP)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "searches 0 blocks 64 warps 16\n"
    assert "summed is launched with what triton.autotune finds: no kernel folder declares" in ran.stderr


def test_without_answers_the_program_searches_as_ever(adopted, tmp_path):
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "TILEWRIGHT_KERNEL_FOLDERS": str(adopted["matmul"].folder),
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "TILEWRIGHT_DATA_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tilewright.service.cli", "run", "--", sys.executable, str(APP)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "searches 4 blocks 32 warps 8\n"
    said = "matmul is launched with what triton.autotune finds: no result for matmul m=64,n=48,k=80"
    assert said in ran.stderr
    assert "Tune it: tilewright tune matmul --shape m=32,n=96,k=64" in ran.stderr


def test_what_no_declaration_can_say_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    program = tmp_path / "app.py"
    program.write_text(
        "import torch, triton, triton.language as tl\n"
        "@triton.jit\n"
        "def fill(x, sizes, N: tl.constexpr):\n"
        "    tl.store(x + tl.arange(0, N), sizes[0])\n"
        "fill[(1,)](torch.empty(16), (1.0, 2.0), 16)\n"
    )
    seen = capture([sys.executable, str(program)], tmp_path / "seen")
    with pytest.raises(CaptureError, match="sizes is a tuple: arrays, numbers and None are taken over"):
        adopt_launch(seen, "fill", target=tmp_path / "made")
