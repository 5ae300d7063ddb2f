"""Triton kernels on a GPU: launched from their cubins, verified, timed, and launched by an application."""

from pathlib import Path

import numpy as np
import pytest
from triton_kernels.scaled import CONFIGURATION, PROBLEM, SOURCE, scaled_in

from tilewright.kernels.catalogue import Catalogue, _import_from, _kernel_of
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime import ArgumentError, Runtime

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")]
pytest.importorskip("triton")
EXAMPLES = Path(__file__).parents[2] / "examples"

BY_DESCRIPTOR = """
import triton
import triton.language as tl


@triton.jit
def scale(x, BLOCK: tl.constexpr, y, n, step, factor):
    place = tl.program_id(0) * BLOCK
    source = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])
    target = tl.make_tensor_descriptor(y, [n], [1], [BLOCK])
    target.store([place], source.load([place]) * factor)
"""
"""Takes scratch memory in global memory for each program."""


@pytest.mark.parametrize("source", [SOURCE, BY_DESCRIPTOR])
def test_a_right_kernel_is_right_and_timed(device, tmp_path, source):
    if source is BY_DESCRIPTOR and device.model.limits.compute_capability < (9, 0):
        pytest.skip("tensor descriptors need 9.0")
    bench = device.bench(scaled_in(tmp_path, source), PROBLEM, seed=1)
    try:
        evaluation = bench.evaluate(CONFIGURATION, "warm")
        assert (evaluation.outcome, evaluation.log) == (Outcome.MEASURED, "")
        assert evaluation.resources.registers > 0
    finally:
        bench.close()


def test_writes_out_of_bounds_are_found(device, tmp_path):
    bench = device.bench(
        scaled_in(tmp_path, SOURCE.replace("tl.store(y + place", "tl.store(y + place + 1")), PROBLEM, 1
    )
    try:
        with pytest.raises(TrialFailure) as failed:
            bench.verify(bench.compile(CONFIGURATION))
        assert failed.value.outcome is Outcome.WRONG_RESULT
    finally:
        bench.close()


@pytest.mark.parametrize("name", ["triton_layer_norm", "triton_matmul", "triton_softmax"])
def test_every_examples_default_is_right(device, name):
    folder = EXAMPLES / name
    kernel = _kernel_of(folder, _import_from(folder))
    problem = kernel.problem(dict.fromkeys(kernel.axes, 333))
    bench = device.bench(kernel, problem, seed=1)
    try:
        program = bench.compile(kernel.default_configuration(kernel.space(problem, device.model.limits)))
        assert [v.message() for v in bench.verify_each_kind(program) if not v.is_right] == []
    finally:
        bench.close()


def test_an_application_launches_it(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    launch = Runtime(kernels=Catalogue({"scaled": scaled_in(tmp_path)})).best("scaled", n=100)
    x, y = torch.arange(100.0, device="cuda"), torch.zeros(100, device="cuda")
    launch(x, y)
    np.testing.assert_array_equal(y.cpu().numpy(), 2 * np.arange(100.0))
    launch(x, y, factor=0.5)
    np.testing.assert_array_equal(y.cpu().numpy(), np.arange(100.0) / 2)
    with pytest.raises(ArgumentError, match="the code is compiled for 100"):
        launch(x, y, n=99)
