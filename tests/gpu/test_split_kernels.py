"""Kernels whose blocks share outputs, on a GPU: sums that meet in a workspace, launch after launch, and in clusters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue

pytestmark = pytest.mark.gpu
GEMM, GEMV, LINEAR = (catalogue().get(name) for name in ("gemm", "gemv", "linear"))


def outputs_of_launches(device, kernel, problem, variant, wanted):
    """Outputs from the inputs that are timed, of each of two configurations as wanted: two, and one after a timing.

    Before each, launches with all kinds of inputs were right, also those whose outputs have NaN.
    """
    bench = device.bench(kernel, problem, 3)
    feasible = [c for c in kernel.space(problem, device.model.limits, [variant]).feasible if wanted(c.values)]
    assert feasible, f"no such configuration of {variant}"
    for configuration in (feasible[0], feasible[-1]):
        executable = bench.compile(configuration)
        found = []
        for number in range(3):
            if number == 2:
                bench.sample(executable, "warm", 3)
            assert [each.wrong for each in bench.verify_each_kind(executable)] == [0] * len(bench.arrays.kinds)
            assert bench.verify_timed(executable).wrong == 0
            found.append(bench.output())
        yield configuration, found
    bench.close()


@pytest.mark.parametrize(
    ("by_cluster", "shares"),
    [(0, {8}), (1, {16}), (1, {4}), (0, set(range(65, 128)))],
    ids=["workspace", "cluster", "clusters and workspace", "across tiles"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_split_product_is_the_same_in_every_launch(device, dtype, by_cluster, shares):
    shape = {"m": 96, "n": 130, "k": 9000} if max(shares) < 65 else {"m": 1100, "n": 1030, "k": 1030}
    problem = GEMM.problem(shape, dtype, {"trans_b": True, "beta_zero": True})

    def wanted(c):
        return c.SHARE_K in shares and by_cluster == c.BY_CLUSTER

    for configuration, found in outputs_of_launches(device, GEMM, problem, "register", wanted):
        for other in found[1:]:
            assert np.array_equal(found[0], other), configuration


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_split_layer_is_activated_once(device, dtype):
    problem = LINEAR.problem({"m": 40, "n": 70, "k": 6000}, dtype, {"activation": "gelu"})
    for configuration, found in outputs_of_launches(device, LINEAR, problem, "register", lambda c: c.SHARE_K < 64):
        assert np.array_equal(found[0], found[2]), configuration


@pytest.mark.parametrize(
    ("dtype", "beta_zero", "shape"),
    list(itertools.product(("float32", "float64"), (False, True), ((3, 40_000), (513, 2049), (1, 999), (700, 1)))),
)
def test_transposed_gemv_is_right_split_and_whole(device, dtype, beta_zero, shape):
    problem = GEMV.problem(dict(zip("mn", shape, strict=True)), dtype, {"trans_a": True, "beta_zero": beta_zero})
    for splits in (True, False):
        feasible = GEMV.space(problem, device.model.limits, ["columns"]).feasible
        if any((c.values.SPLIT > 1) == splits for c in feasible):
            launches = outputs_of_launches(device, GEMV, problem, "columns", lambda c, s=splits: (c.SPLIT > 1) == s)
            for configuration, found in launches:
                assert not beta_zero or np.array_equal(found[0], found[1]), configuration
