"""The sources of rms_norm and layer_norm, alone and behind a residual addition, run for real on the CPU device."""

import pytest
from contracts.host_compiler import SANITIZING, checked
from contracts.variant import H200
from contracts.verified import verified
from sampling import EXHAUSTIVE, sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration

NAMES = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")
CONFIGURATIONS = {
    "part of a warp": Configuration.of("held", {"THREADS_PER_ROW": 8, "ROWS": 8, "VECTOR_WIDTH": 1}),
    "two warps a row": Configuration.of("held", {"THREADS_PER_ROW": 64, "ROWS": 2, "VECTOR_WIDTH": 1}),
    "walking": Configuration.of("walk", {"BLOCK": 64, "VECTOR_WIDTH": 1}),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")


@pytest.mark.parametrize(
    ("name", "how", "dtype"),
    sampled(
        ((name, how, dtype) for name in NAMES for how in CONFIGURATIONS for dtype in DTYPES),
        lambda name, how, dtype: NAMES.index(name) == (list(CONFIGURATIONS).index(how) + DTYPES.index(dtype)) % 4,
    ),
)
def test_odd_shapes_are_right(device, name, how, dtype):
    kernel = catalogue().get(name)
    problem = kernel.problem({"m": 9, "n": 203}, dtype)
    assert verified(device, kernel, problem, CONFIGURATIONS[how]).wrong == 0


@pytest.mark.parametrize(
    ("name", "n", "dtype"),
    sampled(
        ((name, n, dtype) for name in NAMES for n in (1, 40, 1032) for dtype in DTYPES),
        lambda name, n, dtype: (name, n, dtype) in {("add_layer_norm", 1032, "bfloat16"), ("rms_norm", 1, "float32")},
    ),
)
def test_corners_of_the_space_are_right(device, name, n, dtype):
    kernel = catalogue().get(name)
    problem = kernel.problem({"m": 5, "n": n}, dtype)
    for variant in ("held", "walk"):
        feasible = kernel.space(problem, device.model.limits, only=[variant]).feasible
        for configuration in dict.fromkeys((feasible[0], feasible[-1])):
            assert verified(device, kernel, problem, configuration).wrong == 0


def test_half_types_have_loads_of_eight_elements_and_others_have_not():
    kernel = catalogue().get("rms_norm")
    limits_of = {"bfloat16": 8, "float16": 8, "float32": 4, "float64": 2}
    for dtype, widest in limits_of.items():
        problem = kernel.problem({"m": 64, "n": 4096}, dtype)
        space = kernel.space(problem, H200)
        assert max(c.values.VECTOR_WIDTH for c in space.feasible) == widest


@SANITIZING
@pytest.mark.parametrize("how", CONFIGURATIONS)
@pytest.mark.parametrize("mode", ["address", pytest.param("thread", marks=EXHAUSTIVE)])
def test_variants_are_clean_under_sanitizers(device, how, mode):
    kernel = catalogue().get("add_layer_norm")
    bench = device.bench(kernel, kernel.problem({"m": 9, "n": 203}, "bfloat16"), seed=5)
    assert checked(bench, CONFIGURATIONS[how], mode).is_clean
    bench.close()
