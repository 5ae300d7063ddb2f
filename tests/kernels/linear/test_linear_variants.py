"""The variants of linear on products of gemm: bias and activation are applied to finished sums, on the host."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from contracts.register_on_host import register_on_host
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, assert_right, drawn, needs_nvrtc

from tilewright.kernels.linear.declaration import KERNEL
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compiler import compile_nvrtc

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
