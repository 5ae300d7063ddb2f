"""linear's search spaces: those of the product inside, and what its macros and work counts say."""

import itertools
import random

import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import SearchSpace

LINEAR, GEMM = catalogue().get("linear"), catalogue().get("gemm")
SHARED = sorted({variant.name for variant in LINEAR.variants} & {variant.name for variant in GEMM.variants})
SHAPES = [{"m": 256, "n": 100, "k": 784}, {"m": 131, "n": 67, "k": 36}, {"m": 1, "n": 1, "k": 1}]


@pytest.mark.parametrize("name", [name for name in SHARED if name != "wpt_strided"])  # linear's has runs alone
def test_the_space_is_that_of_the_product_inside(name):
    ours, theirs = LINEAR.variant(name), GEMM.variant(name)
    for sizes, dtype in itertools.product(((256, 104, 784), (131, 67, 36), (1, 1, 1), (64, 4096, 512)), LINEAR.dtypes):
        for accuracy in ("fp32", "tf32") if dtype == "float32" else ("fp32",):
            shape, options = dict(zip("mnk", sizes, strict=True)), {"accuracy": accuracy}
            layer, product = (
                LINEAR.problem(shape, dtype, options),
                GEMM.problem(shape, dtype, options | {"trans_b": True}),
            )
            assert ours.admits(layer, H200) == theirs.admits(product, H200)
            feasible = list(SearchSpace((ours.space(),), layer, H200).feasible) if ours.admits(layer, H200) else []
            assert not feasible or feasible == list(SearchSpace((theirs.space(),), product, H200).feasible)
            for configuration in random.Random(1).sample(feasible, min(20, len(feasible))):
                values = configuration.values
                assert ours.launch(values, layer) == theirs.launch(values, product)
                assert ours.workspace_bytes(values, layer) == theirs.workspace_bytes(values, product)


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
