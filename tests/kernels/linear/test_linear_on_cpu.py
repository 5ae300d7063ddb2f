"""linear's sources, run for real on the CPU device."""

from contextlib import closing

import pytest
from contracts.host_compiler import SANITIZING, checked
from contracts.verified import verified
from faulty_kernels import with_change
from sampling import EXHAUSTIVE, sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.verify import C_DEFAULT

LINEAR = catalogue().get("linear")
ODD = {"m": 37, "n": 53, "k": 71}
STRIDED = Configuration.of("wpt_strided", {"TILE_M": 32, "TILE_N": 16, "TILE_K": 16, "WPT_M": 4, "WPT_N": 2})


@pytest.mark.parametrize(
    ("variant", "dtype", "activation"),
    [
        *sampled(
            (("wpt", dtype, activation) for activation in ACTIVATIONS for dtype in ("float32", "float64")),
            lambda _, dtype, activation: (dtype == "float64") == (activation in {"gelu", "sigmoid"}),
        ),
        ("tiled", "float32", "none"),
        ("tiled", "float64", "gelu"),
        ("wpt_strided", "float64", "relu"),
        ("wpt_strided", "float32", "tanh"),
    ],
)
def test_layers_are_right_in_odd_shapes(device, variant, dtype, activation):
    problem = LINEAR.problem(ODD, dtype, {"activation": activation})
    (start,) = LINEAR.space(problem, device.model.limits, only=[variant]).defaults()
    found = verified(device, LINEAR, problem, start)
    assert found.wrong == 0
    assert found.bound_ratio < C_DEFAULT


def test_a_bias_that_outweighs_the_products_costs_one_rounding(device):
    problem = LINEAR.problem({"m": 60, "n": 90, "k": 244}, "float16", {"output": "float32"})
    with closing(device.bench(LINEAR, problem, seed=5)) as bench:
        executable = bench.compile(LINEAR.space(problem, device.model.limits, only=["tiled"]).feasible[0])
        verifications = {found.inputs: found for found in bench.verify_each_kind(executable)}
    assert verifications["smallest"].bound_ratio < 1


@pytest.mark.parametrize("shape", [{"m": 1, "n": 1, "k": 1}, {"m": 3, "n": 130, "k": 784}])
@pytest.mark.parametrize("variant", ["wpt_strided", "wpt"])
def test_corners_of_the_space_are_right_in_other_shapes(device, variant, shape):
    problem = LINEAR.problem(shape, "float32", {"activation": "sigmoid"})
    feasible = LINEAR.space(problem, device.model.limits, only=[variant]).feasible
    for configuration in (feasible[0], feasible[-1]):
        assert verified(device, LINEAR, problem, configuration).wrong == 0


@SANITIZING
@pytest.mark.parametrize("mode", ["address", pytest.param("thread", marks=EXHAUSTIVE)])
def test_strided_loads_are_clean_under_sanitizers(device, mode):
    """The other variants' machinery is gemm's; this one loads by its own pattern."""
    problem = LINEAR.problem(ODD, "float32", {"activation": "gelu"})
    assert STRIDED in LINEAR.space(problem, device.model.limits)
    bench = device.bench(LINEAR, problem, seed=5)
    assert checked(bench, STRIDED, mode).is_clean
    bench.close()


@pytest.mark.parametrize(
    ("file", "text", "bug"),
    [
        ("layer.cuh", "column < N ? b[column]", "column < N ? b[origin.n]"),
        ("layer.cuh", "return activate(sum)", "return sum"),
        (
            "../common/activation.cuh",
            "erfc(-SQRT_HALF * z)",
            "(REAL(1) + tanh(REAL(0.7978845608) * (z + REAL(0.044715) * z * z * z)))",
        ),
        ("../fma/wpt.cuh", "thread * LOADS + i", "thread * LOADS"),
        ("../fma/wpt.cuh", "(K % TILE_K == 0 || p < K)", "(p + 1 < K)"),
    ],
)
def test_a_bug_is_found(device, tmp_path, file, text, bug):
    """The verification that tuning runs sees what one changed line does."""
    broken = with_change(LINEAR, tmp_path, file, text, bug)
    problem = LINEAR.problem(ODD, "float32", {"activation": "gelu"})
    assert verified(device, broken, problem, STRIDED).wrong > 0
