"""Inputs that a source has in constant memory: declared, filled before a launch, and none of the parameters."""

import re

import numpy as np
import pytest
from contracts.variant import needs_nvrtc

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.own import limits_of
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.kernel_check.parameters import check_parameters
from tilewright.tuner.kernel_check.report import KernelCheckReport
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.launches.host import HostFunction

SOURCE = """
#define BLOCK 64
__constant__ REAL weights[SHAPE_K];
__constant__ int offsets[2];
extern "C" __global__ void filtered(const REAL* x, REAL* y, REAL factor) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  REAL sum = 0;
  for (int k = 0; k < SHAPE_K; ++k) sum += weights[k] * x[(i + k + offsets[1]) % SHAPE_N];
  if (i < SHAPE_N) y[i] = factor * sum;
}
"""
DECLARATION = """
import numpy as np

from tilewright.kernels.kernel import Kernel, Scalar, Tensor, Variant, covering, shape_of
from tilewright.kernels.space import choice


def reference(p, arrays, scalars):
    x, weights = arrays["x"].astype(np.float64), arrays["f"].astype(np.float64)
    shifted = np.stack([np.roll(x, -k - arrays["o"][1]) for k in range(len(weights))])
    return scalars["factor"] * weights @ shifted


KERNEL = Kernel(
    name="filtered",
    arguments=(
        Tensor("f", "input", shape_of("k"), symbol="weights"),
        Tensor("x", "input", shape_of("n")),
        Tensor("o", "input", shape_of(2), dtype="int32", symbol="offsets"),
        Tensor("y", "output", shape_of("n")),
        Scalar("factor", lambda p: 2.0),
    ),
    variants=(Variant("plain", "filtered.cu", covering("n", block=("BLOCK",)), (choice("BLOCK", 64),)),),
    reference=reference,
    inputs=lambda p, generator: {"o": generator.integers(1, 5, 2)},
    example_shape={"n": 300, "k": 7},
)
"""
BLOCK_64 = Configuration.of("plain", {"BLOCK": 64})


def load(folder, declaration=DECLARATION, source=SOURCE):
    folder.mkdir(exist_ok=True)
    (folder / "declaration.py").write_text(declaration)
    (folder / "filtered.cu").write_text(source)
    return Catalogue.load([folder]).get("filtered")


@pytest.fixture
def kernel(tmp_path):
    return load(tmp_path / "filtered")


def test_they_are_filled_for_every_kind_of_inputs_and_are_no_parameters(kernel, device):
    assert [argument.name for argument in kernel.parameters] == ["x", "y", "factor"]
    bench = device.bench(kernel, kernel.problem({"n": 300, "k": 7}), seed=1)
    try:
        for verification in bench.verify_each_kind(bench.compile(BLOCK_64)):
            assert verification.is_right, verification.message()
        assert min(bench.sample(bench.compile(BLOCK_64), "warm", 2)) > 0
    finally:
        bench.close()
    report = KernelCheckReport(kernel.name)
    check_parameters(kernel, report)
    assert not report.findings


def test_a_launch_copies_what_the_application_has_there_now(kernel, device, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    problem = kernel.problem({"n": 300, "k": 7})
    function = HostFunction(kernel, problem, Choice(BLOCK_64, "pinned"))
    generator = np.random.default_rng(1)
    x, o, y = generator.random(300, np.float32), np.array([0, 3], np.int32), np.zeros(300, np.float32)
    for _ in range(2):
        f = generator.random(7, np.float32)
        function.launch(tuple(array.ctypes.data for array in (f, x, o, y)), (0.5,), 0, None)
        expected = kernel.reference(problem, {"x": x, "f": f, "o": o}, {"factor": 0.5})
        assert np.allclose(y, expected, rtol=1e-5)


def test_an_array_that_is_too_small_in_the_source_is_named(device, monkeypatch, tmp_path):
    kernel = load(tmp_path / "filtered", source=SOURCE.replace("offsets[2]", "offsets[1]"))
    problem = kernel.problem({"n": 300, "k": 7})
    bench = device.bench(kernel, problem, seed=1)
    try:
        with pytest.raises(TrialFailure, match="offsets: the array in constant memory has fewer than the 8 bytes"):
            bench.verify(bench.compile(BLOCK_64))
    finally:
        bench.close()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    arrays = [np.zeros(300, np.float32) for _ in kernel.tensors]
    function = HostFunction(kernel, problem, Choice(BLOCK_64, "pinned"))
    with pytest.raises(LaunchError, match="offsets in the source of filtered is smaller than o"):
        function.launch(tuple(array.ctypes.data for array in arrays), (0.5,), 0, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": SOURCE.replace("weights[SHAPE_K]", "others[SHAPE_K]")}, "which f fills"),
        (
            {"source": SOURCE.replace("__constant__ REAL", "__device__ REAL")},
            "does not declare `__constant__ … weights",
        ),
        (
            {
                "declaration": DECLARATION.replace(
                    '"y", "output", shape_of("n")', '"y", "output", shape_of("n"), symbol="y"'
                )
            },
            "y is in constant memory: its role must be input",
        ),
        ({"declaration": DECLARATION.replace('"k": 7', '"k": 20_000')}, "its constants take 80008 bytes"),
    ],
)
def test_a_declaration_that_cannot_fill_them_is_refused(tmp_path, changes, reason):
    with pytest.raises(BrokenDeclarationError, match=re.escape(reason)):
        load(tmp_path / "filtered", **changes)


@needs_nvrtc
def test_a_cubin_has_them_under_their_names(kernel):
    problem = kernel.problem(kernel.example_shape)
    assert BLOCK_64 in kernel.space(problem, limits_of((9, 0)))
    cubin = compile_now(Compilation.of(kernel, problem, BLOCK_64, "sm_90", "nvrtc")).cubin
    assert b"\0weights\0" in cubin
    assert b"\0offsets\0" in cubin
