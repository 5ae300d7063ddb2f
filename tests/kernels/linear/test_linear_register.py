"""The variant `register` of linear: gemm's product with bias and activation applied to finished sums."""

import random
from dataclasses import replace

import pytest
from contracts.register_on_host import register_on_host
from contracts.variant import assert_right, needs_nvrtc

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.kernels.space import SearchSpace
from tilewright.tuner.compile.compiler import compile_nvrtc

LINEAR, GEMM = catalogue().get("linear"), catalogue().get("gemm")


def sizes_of(text):
    return dict(zip("mnk", map(int, text.split("x")), strict=True))


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    return register_on_host(LINEAR, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("shape", "dtype", "activation", "shares", "multiprocessors"),
    [
        ("37x53x71", "float32", "gelu", {128}, 132),
        ("70x36x40", "float64", "relu", {128}, 132),
        ("40x66x1030", "float32", "tanh", {8}, 132),
        ("97x150x395", "float64", "sigmoid", set(range(65, 128)), 2),
        ("9x5x3", "float32", "none", {128}, 132),
    ],
)
def test_layers_are_right_whole_and_split(hosted, device, *, shape, dtype, activation, shares, multiprocessors):
    problem = hosted.problem(sizes_of(shape), dtype, {"activation": activation})
    limits = replace(device.model.limits, multiprocessors=multiprocessors)  # so that the share is of use
    feasible = SearchSpace((hosted.variants[0].space(),), problem, limits).feasible
    chosen = [c for c in feasible if c.values.SHARE_K in shares and not c.values.BY_CLUSTER]
    configuration = random.Random(shape).choice(chosen)
    assert_right(device, hosted, problem, configuration)


@needs_nvrtc
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_compiles_without_spills(activation):
    problem = LINEAR.problem(sizes_of("300x129x2000"), options={"activation": activation})
    default = LINEAR.variant("register").space().default()
    compiled = compile_nvrtc(LINEAR.source("register"), LINEAR.definitions(problem, default), "sm_80", LINEAR.entry)
    assert compiled.resources.spill_bytes == 0
