from __future__ import annotations

import dataclasses
import random
from collections import Counter
from itertools import islice

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits

HOPPER = Limits(
    compute_capability=(9, 0),
    multiprocessors=132,
    memory_bytes=140 << 30,
    max_shared_bytes=227 << 10,
    shared_bytes_per_multiprocessor=228 << 10,
)
GEMM = catalogue().get("gemm")


@pytest.fixture(scope="module")
def random_shapes(benchmark_module):
    return benchmark_module("random_shapes")


def test_every_layout_and_dtype_meets_every_shape(random_shapes):
    drawn, edges = random_shapes.shapes(GEMM, 3, random.Random(1))
    assert len(drawn) == 3
    assert len(edges) == 27
    found = list(random_shapes.problems(GEMM, drawn, GEMM.dtypes, random.Random(1)))
    keys = Counter((p.axes, p.dtype, p.options["trans_a"], p.options["trans_b"]) for p in (alike[0] for alike in found))
    assert len(keys) == 3 * 2 * 4
    assert set(keys.values()) == {1}
    for alike in found:
        assert len({(p.axes, p.dtype, p.options["trans_a"], p.options["trans_b"]) for p in alike}) == 1
        assert {p.options["beta_zero"] for p in alike} == {False, True}


def test_a_variant_meets_every_shape_at_a_problem_that_it_serves(random_shapes):
    tf32_only = dataclasses.replace(
        GEMM.variant("tiled"), name="tf32_only", supports=lambda p: p.options["accuracy"] == "tf32"
    )
    kernel = dataclasses.replace(GEMM, variants=(GEMM.variant("naive"), tf32_only))
    [alike] = islice(random_shapes.problems(kernel, [{"m": 60, "n": 50, "k": 40}], ["float32"], random.Random(1)), 1)
    chosen = [(p, c) for p, some in random_shapes.tasks(kernel, alike, HOPPER, 2, random.Random(1)) for c in some]
    assert Counter(c.variant for _, c in chosen) == {"naive": 2, "tf32_only": 2}
    assert all(p.options["accuracy"] == "tf32" for p, c in chosen if c.variant == "tf32_only")


def test_sizes_stay_small_and_are_often_aligned_and_often_not(random_shapes):
    generator = random.Random(2)
    sizes = [random_shapes.random_size(generator) for _ in range(500)]
    assert 1 <= min(sizes) < max(sizes) <= random_shapes.LARGEST
    assert 150 < sum(size % 4 == 0 for size in sizes) < 400


def test_configurations_are_feasible_and_of_every_variant(random_shapes):
    tasks = list(islice(random_shapes.work(GEMM, HOPPER, 1, 16, random.Random(3)), 8))
    assert {c.variant for _, chosen in tasks for c in chosen} == {v.name for v in GEMM.variants}
    for problem, chosen in tasks:
        for configuration in chosen:
            space = GEMM.variant(configuration.variant).space()
            assert space.violated(configuration.values, problem, HOPPER) is None


def test_variants_that_are_short_are_topped_up_and_no_others(random_shapes):
    tally = random_shapes.Tally()
    for variant in GEMM.variants:
        tally.checked[variant.name, "float32"] = 20 if variant.name != "tiled" else 1
    tasks = list(random_shapes.top_up(GEMM, HOPPER, tally, 20, random.Random(4)))
    names = Counter(c.variant for _, chosen in tasks for c in chosen)
    assert set(names) == {"tiled"}
    assert names["tiled"] >= 19


def test_the_summary_says_where_too_few_were_found(random_shapes):
    tally = random_shapes.Tally()
    tally.checked["tiled", "float32"] = 5
    lines = random_shapes.summary(GEMM, tally, 5, 1.0)
    flagged = {line.split()[0] for line in lines if "FEWER" in line}
    assert flagged == {v.name for v in GEMM.variants} - {"tiled"}
