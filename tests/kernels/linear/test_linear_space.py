import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue

LINEAR = catalogue().get("linear")
SHAPES = [{"m": 256, "n": 100, "k": 784}, {"m": 131, "n": 67, "k": 36}, {"m": 1, "n": 1, "k": 1}]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wpt_has_the_space_of_the_product_inside(shape, dtype):
    gemm = catalogue().get("gemm")
    inside = gemm.space(gemm.problem(shape, dtype, {"trans_b": True}), H200, only=["wpt"])
    assert LINEAR.space(LINEAR.problem(shape, dtype), H200, only=["wpt"]).feasible == inside.feasible


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", ["tiled", "wpt_strided", "wpt", "register"])
def test_every_variant_can_be_tuned(shape, dtype, variant):
    space = LINEAR.space(LINEAR.problem(shape, dtype), H200, only=[variant])
    assert len(space.defaults()) == 1


def test_strided_loads_are_runs():
    problem = LINEAR.problem({"m": 256, "n": 100, "k": 784})
    feasible = LINEAR.space(problem, H200, only=["wpt_strided"]).feasible
    assert 100 < len(feasible) < 1000
    for configuration in feasible:
        c = configuration.values
        threads = c.TILE_M * c.TILE_N // (c.WPT_M * c.WPT_N)
        assert min(c.TILE_M, c.TILE_N) * c.TILE_K > threads, configuration


def test_work_is_counted_as_declared():
    problem = LINEAR.problem({"m": 2, "n": 3, "k": 5}, "float64", {"activation": "gelu"})
    assert LINEAR.flops(problem) == 60
    assert LINEAR.bytes_moved(problem) == 8 * (2 * 5 + 3 * 5 + 3 + 2 * 3)


def test_an_activation_becomes_a_macro():
    problem = LINEAR.problem({"m": 2, "n": 3, "k": 5}, options={"activation": "gelu"})
    space = LINEAR.space(problem, H200, only=["tiled"])
    macros = LINEAR.definitions(problem, space.feasible[0])
    assert macros["ACTIVATION_GELU"] == "1"
    assert [name for name in macros if name.startswith("ACTIVATION")] == ["ACTIVATION_GELU"]
