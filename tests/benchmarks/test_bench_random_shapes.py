from __future__ import annotations

import dataclasses
import random
import re
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
    assert len(keys) == 3 * len(GEMM.dtypes) * 4
    assert set(keys.values()) == {1}
    for alike in found:
        assert len({(p.axes, p.dtype, p.options["trans_a"], p.options["trans_b"]) for p in alike}) == 1
        assert {p.options["beta_zero"] for p in alike} == {False, True}


def test_half_of_the_problems_have_a_batch_or_views_and_all_of_those_are_problems(random_shapes):
    generator, drawn = random.Random(4), []
    for trans_a in (False, True) * 200:
        shape, options = {axis: random_shapes.random_size(generator) for axis in "mnk"}, {"trans_a": trans_a}
        layout = {"trans_a": trans_a, "trans_b": generator.random() < 0.5}
        views = random_shapes.random_views(GEMM, shape, layout, generator)
        drawn.append(GEMM.problem({**shape, **views}, "float32", options | layout))
    assert 140 < sum(bool(problem.chosen_axes) for problem in drawn) < 230
    chosen = Counter(axis for problem in drawn for axis, _ in problem.chosen_axes)
    assert min(chosen[axis.name] for axis in GEMM.optional_axes) > 20


def test_a_variant_meets_every_shape_at_a_problem_that_it_serves(random_shapes):
    tf32_only = dataclasses.replace(
        GEMM.variant("tiled"), name="tf32_only", supports=lambda p: p.options["accuracy"] == "tf32"
    )
    kernel = dataclasses.replace(GEMM, variants=(GEMM.variant("naive"), tf32_only))
    [alike] = islice(random_shapes.problems(kernel, [{"m": 60, "n": 50, "k": 40}], ["float32"], random.Random(1)), 1)
    chosen = [(p, c) for p, some in random_shapes.tasks(kernel, alike, HOPPER, 2, random.Random(1)) for c in some]
    assert Counter(c.variant for _, c in chosen) == {"naive": 2, "tf32_only": 2}
    assert all(p.options["accuracy"] == "tf32" for p, c in chosen if c.variant == "tf32_only")


def test_sizes_stay_small_and_are_often_aligned_and_often_not(benchmark_module):
    axis, generator = benchmark_module("random_problems.sizes"), random.Random(2)
    sizes = [axis.random_size(generator) for _ in range(500)]
    assert 1 <= min(sizes) < max(sizes) <= axis.LARGEST
    assert 150 < sum(size % 4 == 0 for size in sizes) < 400


def test_configurations_are_feasible_and_of_every_variant(random_shapes):
    tasks = list(islice(random_shapes.work(GEMM, HOPPER, 1, 16, random.Random(3)), 16))
    whole_vectors = [
        GEMM.problem({"m": 64, "n": 72, "k": 80}, "float16", {"trans_b": True}),
        GEMM.problem({"m": 256, "n": 512, "k": 64}, "float32", {"accuracy": "tf32"}),
        GEMM.problem({"m": 256, "n": 512, "k": 64}, "float32"),
    ]  # what tensor maps, few rows and few terms need is drawn less often
    tasks += random_shapes.tasks(GEMM, whole_vectors, HOPPER, 1, random.Random(3))
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
    lines = random_shapes.summary(GEMM, tally, 5)
    flagged = {line.split()[0] for line in lines if "FEWER" in line}
    assert flagged == {v.name for v in GEMM.variants} - {"tiled"}


def test_a_run_says_as_it_goes_what_it_has_checked(random_shapes, monkeypatch, capsys):
    tally = random_shapes.Tally()
    tally.checked["tiled", "float32"] = 5
    tally.print_progress(GEMM)
    assert not capsys.readouterr().out  # it was begun just now
    monkeypatch.setattr(random_shapes, "PROGRESS_S", 0.0)
    tally.print_progress(GEMM)
    assert re.match(r"gemm: 5 checked, 0 failed, \d+ s so far: .*\btiled 5\b", capsys.readouterr().out)


def test_random_layers_with_quantised_weights_meet_every_variant(random_shapes):
    kernel = catalogue().get("linear_quantized")
    tasks = random_shapes.work(kernel, HOPPER, 2, 12, random.Random(5))
    drawn = [(problem, configuration) for problem, some in islice(tasks, 40) for configuration in some]
    assert {configuration.variant for _, configuration in drawn} == {variant.name for variant in kernel.variants}
    assert all(problem.shape["m"] <= 64 for problem, _ in drawn)


def test_random_convolutions_meet_every_variant(random_shapes):
    kernel = catalogue().get("conv2d")
    tasks = random_shapes.work(kernel, HOPPER, 6, 30, random.Random(4))
    drawn = [(problem, configuration) for problem, some in islice(tasks, 90) for configuration in some]
    assert {configuration.variant for _, configuration in drawn} == {variant.name for variant in kernel.variants}
    assert {problem.options["layout"] for problem, _ in drawn} == {"nhwc", "nchw"}
    assert any(problem.chosen_axes for problem, _ in drawn)
