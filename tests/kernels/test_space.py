"""Spaces, launches and layouts stay as they were recorded, unless a change of them was meant (recorded_spaces.py)."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from recorded_spaces import DEVICES, RECORD, STARTS, said, started

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import (
    Configuration,
    Constraint,
    Parameter,
    SearchSpace,
    Values,
    VariantSpace,
    choice,
    powers_of_two,
)

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=140 * 2**30)
HOPPER = replace(LIMITS, max_shared_bytes=227 * 1024, shared_bytes_per_multiprocessor=228 * 1024)
CPU_LIMITS = Limits((0, 0), 1, 2**32, features=frozenset())
PROBLEM = Problem("toy", (("m", 4),), "float32", ())


@st.composite
def spaces(draw):
    """One variant or two; a configuration is feasible where a random linear form of it is not 0 modulo q."""
    made = []
    for name in draw(st.sampled_from([["a"], ["a", "b"]])):
        count = draw(st.integers(1, 3))
        values = st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True)
        parameters = tuple(choice(f"P{i}X", *draw(values)) for i in range(count))
        weights, modulus = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), draw(st.integers(2, 5))

        def holds(c, _p, _d, weights=weights, modulus=modulus):
            return sum(w * c[f"P{i}X"] for i, w in enumerate(weights)) % modulus != 0

        made.append(VariantSpace(name, parameters, (Constraint("sum is not divisible", holds),)))
    return SearchSpace(tuple(made), PROBLEM, LIMITS)


def brute_force(space):
    """All feasible configurations, each constraint asked of each point."""
    found = set()
    for variant in space.spaces:
        names = [p.name for p in variant.parameters]
        for point in itertools.product(*(p.values for p in variant.parameters)):
            values = dict(zip(names, point, strict=True))
            if all(c.holds(Values(values), space.problem, space.limits) for c in variant.constraints):
                found.add(Configuration.of(variant.variant, values))
    return found


@given(spaces())
def test_enumeration_equals_brute_force_and_has_no_doubles(space):
    assert set(space.feasible) == brute_force(space)
    assert len(space.feasible) == len(set(space.feasible)) == len(space)


@given(spaces(), st.data())
def test_nearest_is_feasible_unseen_and_itself_where_it_may_be(space, data):
    if not space.feasible:
        return
    seen = data.draw(st.sets(st.sampled_from(space.feasible)))
    variant = data.draw(st.sampled_from(space.spaces))
    wanted = Configuration.of(
        variant.variant, {p.name: data.draw(st.sampled_from(p.values)) for p in variant.parameters}
    )
    nearest = space.nearest(wanted, exclude=seen)
    unseen = set(space.feasible) - seen
    if not unseen:
        assert nearest is None
    else:
        assert nearest in unseen
        if wanted in unseen:
            assert nearest == wanted
        if any(c.variant == wanted.variant for c in unseen):
            assert nearest.variant == wanted.variant


@given(spaces(), st.data())
def test_changes_are_the_parameters_that_differ(space, data):
    variant = data.draw(st.sampled_from(space.spaces))
    wanted = {p.name: data.draw(st.sampled_from([*p.values, 99])) for p in variant.parameters}  # 99 is no value
    found = space.feasible.changes(Configuration.of(variant.variant, wanted))
    assert len(found) == len(space)
    for configuration, count in zip(space.feasible, found, strict=True):
        differing = sum(wanted.get(name) != value for name, value in configuration.items)
        assert count == differing if configuration.variant == variant.variant else count > len(wanted)


@given(spaces(), st.data())
def test_a_place_is_where_the_configuration_stands_and_none_is_without_one(space, data):
    feasible = list(space.feasible)
    assert [space.feasible.position(c) for c in feasible] == list(range(len(feasible)))
    variant = data.draw(st.sampled_from(space.spaces))
    values = {p.name: data.draw(st.sampled_from([*p.values, 99])) for p in variant.parameters}
    any_point = Configuration.of(variant.variant, values)
    assert (any_point in space.feasible) == (any_point in feasible)
    assert Configuration.of("no such variant", values) not in space.feasible
    assert Configuration.of(variant.variant, values | {"MORE": 1}) not in space.feasible


@given(spaces())
def test_starts_are_feasible_and_one_a_variant(space):
    starts = space.defaults()
    assert all(start in space for start in starts)
    assert [s.variant for s in starts] == [
        v.variant for v in space.spaces if any(c.variant == v.variant for c in space.feasible)
    ]


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
def test_every_default_fits_the_example_and_the_default_variant_has_the_first_configuration_there(kernel):
    problem = kernel.problem(kernel.example_shape)
    space = kernel.space(problem, HOPPER)
    for variant in kernel.usable_variants(problem, HOPPER):
        # What a variant for large problems starts from may be of no use for the example; it fits the device.
        broken = variant.space().violated(variant.space().default().values, problem, HOPPER)
        assert broken is None or broken in {c.name for c in variant.constraints}, variant.name
        assert any(start.variant == variant.name for start in space.defaults())
    assert kernel.default_configuration(space).variant == kernel.default_variant


def test_a_search_begins_with_the_default_and_then_the_most_elaborate_variants():
    kernel = catalogue().get("gemm")
    space = kernel.space(kernel.problem({"m": 2048, "n": 2048, "k": 2048}), HOPPER)
    first = kernel.first_configurations(space)
    assert first[0] == kernel.default_configuration(space)
    declared = [variant.name for variant in kernel.variants]
    places = [declared.index(configuration.variant) for configuration in first]
    assert places[1:] == sorted(places[1:], reverse=True)
    assert {configuration.variant for configuration in first}.isdisjoint({"naive", "tiled"})  # left to the search


STEPS_TO_LEARN_FROM = {"naive", "tiled", "wpt_strided"}
"""Variants that the ladders show and that no search wins with."""


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_step_to_learn_from_is_never_a_start(kernel, dtype):
    if dtype not in kernel.dtypes:
        pytest.skip(f"{kernel.name} has no {dtype}")
    space = kernel.space(kernel.problem(kernel.example_shape, dtype), HOPPER)
    starts = {configuration.variant for configuration in kernel.first_configurations(space)}
    assert starts.isdisjoint(STEPS_TO_LEARN_FROM - {kernel.default_variant})
    assert {variant for variant in space.start_variants if variant in STEPS_TO_LEARN_FROM} <= {kernel.default_variant}


def test_every_variant_of_a_kernel_without_simple_ones_is_a_start():
    kernel = catalogue().get("softmax")
    space = kernel.space(kernel.problem({"m": 8, "n": 2048}), HOPPER)
    first = kernel.first_configurations(space)
    assert first[0] == kernel.default_configuration(space)
    assert sorted(map(str, first)) == sorted(map(str, space.defaults()))


sizes = st.integers(1, 300) | st.sampled_from([1023, 4095, 65537, 2**31 - 1])


@pytest.mark.in_turn(3)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(catalogue().kernels()), st.data())
def test_every_problem_leaves_every_variant_something_to_launch(kernel, data):
    shape = {axis: data.draw(sizes) for axis in kernel.axes}
    dtype = data.draw(st.sampled_from(kernel.dtypes))
    admitted = [o for o in kernel.options if not o.only_dtypes or dtype in o.only_dtypes]
    options = {o.name: data.draw(st.sampled_from(o.values)) for o in admitted}
    try:
        problem = kernel.problem(shape, dtype, options)
    except InvalidProblemError:
        reject()  # sizes at odds with each other, as of a convolution whose taps reach over its image
    space = kernel.space(problem, LIMITS)
    if kernel.memory_bytes(problem) <= LIMITS.memory_bytes:
        assert {c.variant for c in space.feasible} == {v.name for v in kernel.usable_variants(problem, LIMITS)}
    for configuration in data.draw(st.lists(st.sampled_from(space.feasible), max_size=20)) if space.feasible else []:
        launch = kernel.variant(configuration.variant).launch(configuration.values, problem)
        assert launch.threads <= 1024
        assert launch.grid[0] < 2**31
        assert launch.grid[1:] == (1, 1)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gemm_space_stays_searchable(dtype):
    gemm = catalogue().get("gemm")
    # Of 18,000 a search still proposes in 10 ms.
    assert 500 < len(gemm.space(gemm.problem({"m": 2048, "n": 2048, "k": 2048}, dtype), LIMITS)) < 18_000


def test_a_space_asked_for_again_is_not_enumerated_again():
    gemm = catalogue().get("gemm")
    first, again = (gemm.space(gemm.problem({"m": 100, "n": 200, "k": 300}), LIMITS) for _ in range(2))
    assert first is again
    assert gemm.space(gemm.problem({"m": 100, "n": 200, "k": 301}), LIMITS) is not first
    assert gemm.space(gemm.problem({"m": 100, "n": 200, "k": 300}), CPU_LIMITS) is not first
    assert gemm.space(gemm.problem({"m": 100, "n": 200, "k": 300}), LIMITS, ["wpt"]) is not first


def test_rows_that_divide_into_no_vector_leave_scalar_loads():
    gemm = catalogue().get("gemm")
    odd = gemm.space(gemm.problem({"m": 1023, "n": 1025, "k": 1027}), LIMITS, only=["wpt"])
    assert {c.values.VECTOR_WIDTH for c in odd.feasible} == {1}
    half = gemm.space(gemm.problem({"m": 1023, "n": 1024, "k": 1027}), LIMITS, only=["wpt"])
    assert {c.values.VECTOR_WIDTH for c in half.feasible} == {1, 2, 4}


def test_a_device_without_registers_to_share_out_is_not_asked_for_resident_blocks():
    gemm = catalogue().get("gemm")
    problem = gemm.problem(gemm.example_shape)
    assert {c.values.MIN_BLOCKS for c in gemm.space(problem, LIMITS, only=["wpt"]).feasible} == {1, 2, 4}
    assert {c.values.MIN_BLOCKS for c in gemm.space(problem, CPU_LIMITS, only=["wpt"]).feasible} == {1}


def test_a_smaller_device_has_a_smaller_space():
    gemm = catalogue().get("gemm")
    problem = gemm.problem(gemm.example_shape)
    small = Limits((7, 5), 40, 2**34, max_threads_per_block=256, max_shared_bytes=16 * 1024)
    few, many = gemm.space(problem, small), gemm.space(problem, LIMITS)
    assert len(few) < len(many)
    for configuration in few.feasible:
        variant = gemm.variant(configuration.variant)
        assert variant.launch(configuration.values, problem).threads <= 256
        assert variant.shared_bytes(configuration.values, problem) <= 16 * 1024


@given(st.randoms(use_true_random=False), st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000))
def test_what_is_admitted_violates_nothing(chance, m, n, k):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": m, "n": n, "k": k})
    for variant in gemm.usable_variants(problem, HOPPER):
        space = variant.space()
        values = Values({p.name: chance.choice(p.values) for p in space.parameters})
        assert space.admits(values, problem, HOPPER) is (space.violated(values, problem, HOPPER) is None)


def test_the_violated_constraint_is_named():
    wpt = catalogue().get("gemm").variant("wpt").space()
    values = Values({**wpt.default().values, "TILE_M": 256, "TILE_N": 256, "WPT_M": 1, "WPT_N": 1})
    problem = catalogue().get("gemm").problem({"m": 512, "n": 512, "k": 512})
    assert wpt.violated(values, problem, LIMITS) == "block fits the device"


def test_a_default_outside_its_values_is_refused():
    with pytest.raises(ValueError, match="TILE_K"):
        Parameter("TILE_K", (8, 16), 4)
    assert powers_of_two("BLOCK", 32, 256, default=64).values == (32, 64, 128, 256)


ROWS = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("name", [kernel.name for kernel in catalogue().kernels()])
def test_spaces_launches_and_layouts_are_those_of_the_record(name, third):
    rows = [row for row in ROWS if row["kernel"] == name][third::3]
    assert rows, "the record is without this kernel: run recorded_spaces"
    for row in rows:
        assert json.loads(json.dumps(said(catalogue().get(name), row))) == row["said"]


@pytest.mark.parametrize("name", [kernel.name for kernel in catalogue().kernels()])
def test_variants_and_starts_are_those_of_the_record(name):
    rows = [row for row in json.loads(STARTS.read_text(encoding="utf-8")) if row["kernel"] == name]
    assert rows, "the record is without this kernel: run recorded_spaces"
    for row in rows:
        assert started(catalogue().get(name), row) == row["said"], row


def test_every_variant_is_in_the_record():
    recorded = {(row["kernel"], name) for row in ROWS for device in DEVICES for name in row["said"][device]}
    assert recorded == {(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants}
