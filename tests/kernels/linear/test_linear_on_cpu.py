"""linear's sources on the CPU device, its variants made of gemm's, and its search spaces."""

import itertools
import random
from contextlib import closing
from dataclasses import replace
from functools import cache

import pytest
from contracts.launches_on_host import SANITIZING, checked
from contracts.register_on_host import register_on_host
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, assert_right, drawn, needs_nvrtc, verified
from faulty_kernels import with_change
from sampling import EXHAUSTIVE, sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.linear.declaration import KERNEL
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.loop.verify import C_DEFAULT

LINEAR = catalogue().get("linear")
ODD = {"m": 37, "n": 53, "k": 71}
STRIDED = Configuration.of("wpt_strided", {"TILE_M": 32, "TILE_N": 16, "TILE_K": 16, "WPT_M": 4, "WPT_N": 2})


@pytest.mark.in_turn(3)
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


@pytest.mark.in_turn(2)
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


@pytest.mark.in_turn(3)
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


SMALL = {"BY_CLUSTER": 0, "WARP_M": 16, "WARP_N": 16}
HALF = {"BY_CLUSTER": 0, "BLOCKS": 0, "SPLIT_K": 1, "WARP_N": 32}
CASES = [
    ("register", (37, 53, 71), "float32", {"activation": "gelu"}, {"SHARE_K": 128}),
    ("register", (70, 36, 40), "float64", {"activation": "relu"}, {"SHARE_K": 128}),
    ("register", (40, 66, 1030), "float32", {"activation": "tanh"}, {"SHARE_K": 8}),
    ("register on two multiprocessors", (97, 150, 395), "float64", {"activation": "sigmoid"}, {"SHARE_K": 80}),
    ("register", (9, 5, 3), "float32", {"activation": "none"}, {"SHARE_K": 128}),
    ("tensor3xtf32", (33, 50, 132), "float32", {"activation": "relu"}, {**SMALL, "SPLIT_K": 1}),
    ("tensor3xtf32", (34, 51, 131), "float32", {"activation": "gelu"}, {**SMALL, "SPLIT_K": 2}),
    ("tensor3xtf32", (16, 70, 64), "float32", {"activation": "none"}, {**SMALL, "SPLIT_K": 1}),
    ("tensor1xtf32", (20, 36, 100), "float32", {"activation": "tanh", "accuracy": "tf32"}, {**SMALL, "SPLIT_K": 1}),
    ("tensor_fp64", (33, 50, 132), "float64", {"activation": "relu"}, {**SMALL, "SPLIT_K": 1, "BLOCKS": 0}),
    ("tensor_fp64", (34, 51, 131), "float64", {"activation": "gelu"}, {**SMALL, "SPLIT_K": 2}),
    ("tensor_fp64", (130, 70, 300), "float64", {"activation": "tanh"}, {**SMALL, "BLOCKS": 132}),
    ("tensor_half", (33, 50, 132), "bfloat16", {"activation": "relu", "output": "same"}, HALF),
    ("tensor_half", (34, 40, 64), "float16", {"activation": "silu", "output": "float32"}, HALF),
]


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with one variant, whose copies and tensor cores work on the host."""

    @cache
    def made(name):
        folder = tmp_path_factory.mktemp("kernels")
        return (
            register_on_host(KERNEL, folder)
            if name == "register"
            else tensor_on_host(KERNEL, [KERNEL.variant(name)], folder)
        )

    return made


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("variant", "sizes", "dtype", "options", "fixed"), CASES, ids=str)
def test_bias_and_activation_are_applied_to_finished_sums(hosted, device, *, variant, sizes, dtype, options, fixed):
    name, _, few = variant.partition(" on ")
    kernel = hosted(name)
    problem = kernel.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    shared_bytes = {} if name == "register" else {"max_shared_bytes": 48 * 1024}
    count = 2 if few else 4 if name == "tensor_half" else H200.multiprocessors  # so that splitting is of use
    limits = replace(device.model.limits if name == "register" else H200, multiprocessors=count, **shared_bytes)
    fixed = {**fixed, "BY_CLUSTER": 0}
    [configuration] = drawn(kernel.variants[0], problem, limits, sizes, **fixed)
    assert_right(device, kernel, problem, configuration)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("split_k", [1, 3])
def test_sums_of_slices_are_finished_once(hosted, device, split_k):
    layers = hosted("tensor3xtf32_sliced")
    problem = layers.problem({"m": 20, "n": 36, "k": 200}, options={"activation": "relu"})
    small = {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 1, "STAGES": 2, "RESIDENT": 4, "SPLIT_K": split_k}
    default = layers.variants[0].space().default().values
    assert_right(device, layers, problem, Configuration.of("tensor3xtf32_sliced", {**default, **small}))


@needs_nvrtc
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_compiles_without_spills(activation):
    problem = KERNEL.problem({"m": 300, "n": 129, "k": 2000}, options={"activation": activation})
    default = KERNEL.variant("register").space().default()
    compiled = compile_nvrtc(KERNEL.source("register"), KERNEL.definitions(problem, default), "sm_80", KERNEL.entry)
    assert compiled.resources.spill_bytes == 0


def test_layers_of_few_terms_or_for_cuda_cores_are_left_to_other_variants():
    few = KERNEL.problem({"m": 64, "n": 64, "k": 23})
    cores = KERNEL.problem({"m": 64, "n": 64, "k": 512}, options={"accuracy": "fp32-fma"})
    assert not KERNEL.variant("tensor3xtf32").supports(few)
    assert not KERNEL.variant("tensor3xtf32").supports(cores)


GEMM = catalogue().get("gemm")

SHARED = sorted({variant.name for variant in LINEAR.variants} & {variant.name for variant in GEMM.variants})
SHAPES = [{"m": 256, "n": 100, "k": 784}, {"m": 131, "n": 67, "k": 36}, {"m": 1, "n": 1, "k": 1}]


@pytest.mark.in_turn(5)
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
