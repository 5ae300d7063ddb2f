"""gemm's variant of FP16 parts: the arithmetic of the split on the host, and what its space and launches promise."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from contracts.small_on_host import small_on_host
from contracts.variant import H200, assert_resources_suffice, assert_right_for_each_kind, needs_nvrtc
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm import tensor_fp16_sm90_space as space
from tilewright.kernels.gemm import tensor_fp16_small_sm90_space as small
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, SearchSpace, Values

NAME = TENSOR3XFP16_SM90.name
MOST_SPILLED = 64  # bytes: 60 with SPLIT_K (NVRTC 13.0)
VALUES = Values(
    {"BLOCKS": 132, "TILE_M": 128, "TILE_N": 208, "CLUSTER": 2, "SPLIT_K": 1, "PROMOTE_K": 256, "GROUP_M": 8}
)


def problem_of(sizes: tuple[int, int, int], kernel: str = "gemm", **options: bool | str) -> Problem:
    """A float32 problem."""
    declared = catalogue().get(kernel)
    return declared.problem(dict(zip("mnk", sizes, strict=True)), "float32", options)


def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The source's split, of numbers that are scaled already."""
    high = x.astype(np.float16).astype(np.float32)
    high = np.where((high == 0) & (x != 0), np.copysign(np.float32(2.0**-24), x), high)
    return high, (x - high).astype(np.float16).astype(np.float32)


def test_two_parts_miss_a_scaled_number_by_what_the_guard_counts_on():
    generator = np.random.default_rng(1)
    x = np.ldexp(generator.uniform(1, 2, 1_000_000), generator.integers(-40, 15, 1_000_000)).astype(np.float32)
    high, low = parts(x)
    missed = np.abs(x.astype(np.float64) - high - low)
    assert (missed <= np.maximum(2.0**-23 * np.abs(x), 2.0**-25)).all()
    assert (missed[np.abs(x) < 2.0**-3] > 2.0**-27).any(), "the assumption is wasteful"


def test_three_products_of_parts_are_as_exact_as_short_sums_need():
    generator = np.random.default_rng(2)
    scale = 2.0 ** generator.integers(0, 14, (2, 1_000_000))
    a, b = (generator.uniform(1, 2, (2, 1_000_000)) * scale).astype(np.float32)
    (high_a, low_a), (high_b, low_b) = (tuple(p.astype(np.float64) for p in parts(x)) for x in (a, b))
    exact = a.astype(np.float64) * b
    units = np.abs(high_a * high_b + high_a * low_b + low_a * high_b - exact) / exact * 2.0**24
    shortest = min(k for k in range(1, 1000) if TENSOR3XFP16_SM90.supports(problem_of((64, 64, k))))
    assert units.max() <= 2 * math.sqrt(shortest)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [((512, 512, 512), {NAME}), ((512, 512, 64), {NAME}), ((512, 512, 63), set())],
    ids=str,
)
@pytest.mark.parametrize("kernel", ["gemm", "linear"])
def test_long_sums_in_fp32_on_hopper_have_the_variant(kernel, sizes, names):
    declared = catalogue().get(kernel)

    def usable(limits: Limits, **options: str) -> set[str]:
        return {v.name for v in declared.usable_variants(problem_of(sizes, kernel, **options), limits)} & {NAME}

    assert usable(H200) == names
    assert usable(H200, accuracy="tf32") == usable(H200, accuracy="fp32-fma") == set()
    assert usable(replace(H200, compute_capability=(10, 0))) == set()
    assert usable(replace(H200, compute_capability=(8, 0))) == set()


@pytest.mark.parametrize(
    "sizes", [(4096, 4096, 4096), (16384, 16384, 16384), (1023, 1025, 1027), (16, 4096, 14336), (1, 1, 64)], ids=str
)
def test_every_problem_has_configurations_that_promote_often_enough(sizes):
    feasible = catalogue().get("gemm").space(problem_of(sizes), H200, [NAME]).feasible
    assert 1 <= len(feasible) <= 300
    assert all(0.131 * c.values.PROMOTE_K / math.sqrt(sizes[2]) <= 0.75 for c in feasible)
    assert all(c.values.BLOCKS == 132 for c in feasible)


@pytest.mark.parametrize("kernel", ["gemm", "linear"])
def test_two_launches_run_one_after_the_other(kernel):
    problem = problem_of((300, 1000, 515), kernel)
    launches = catalogue().get(kernel).variant(NAME).launches(kernel, VALUES, problem)
    assert [entry for entry, _ in launches] == [f"{kernel}_survey", kernel]
    survey, last = (launch for _, launch in launches)
    # 515 k of a line of A are a warp's; those of 32 columns of gemm's B, which are not contiguous, a cluster's of four.
    assert survey.grid == (38 + 125 if kernel == "linear" else 40 + 32 * 4, 1, 1)
    assert last.grid == (2 * 2 * 5, 1, 1)  # clusters of 256 x 208
    assert last.shared_bytes == 5 * (128 + 208) * 128 + 1024
    assert [launch.overlaps for _, launch in launches] == [False, True]  # a survey waits for the product before it


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        (
            (1023, 1025, 1027),
            (128, 72),
        ),  # 120 tiles for 132 multiprocessors; of 128 x 64 there are 136
        ((511, 513, 2047), (64, 64)),
        ((4097, 4095, 513), (128, 128)),
        ((8192, 8192, 8192), (128, 192)),
    ],
    ids=str,
)
def test_a_search_begins_with_the_tile_whose_turns_are_fast(sizes, tile):
    (start,) = catalogue().get("gemm").space(problem_of(sizes), H200, [TENSOR3XFP16_SM90.name]).defaults()
    assert tile == (start.values.TILE_M, start.values.TILE_N)


def test_long_lines_are_surveyed_by_blocks_of_their_own():
    problem = problem_of((300, 1000, 16500))
    survey, _ = (launch for _, launch in TENSOR3XFP16_SM90.launches("gemm", VALUES, problem))
    assert survey.grid == (300 + 8 * 32, 1, 1)  # a block a line of A; 32 chunks of eight strips of B


def test_a_batch_has_its_matrices_packed_and_a_shared_one_once():
    sizes = {"m": 64, "n": 64, "k": 512, "batch": 10}
    gemm = catalogue().get("gemm")
    launches = [
        dict(TENSOR3XFP16_SM90.launches("gemm", VALUES, gemm.problem(sizes | axes)))
        for axes in ({}, {"stride_a": 0}, {"stride_b": 0})
    ]
    assert [one["gemm_survey"].grid[0] for one in launches] == [10 * 4 + 10 * 4, 4 + 10 * 4, 10 * 4 + 4]
    assert {one["gemm"].grid for one in launches} == {(10 * 2, 1, 1)}  # clusters of two blocks


def test_a_packed_operand_is_not_surveyed_again_and_has_memory_of_its_own():
    problem = problem_of((300, 1000, 515), packed_b=True)
    launches = TENSOR3XFP16_SM90.launches("gemm", VALUES, problem)
    assert launches[0][1].grid == (38, 1, 1)
    packing = dict(TENSOR3XFP16_SM90.packing_launches("gemm", VALUES, problem))
    assert packing["gemm_keep_survey"].grid == (32 * 4, 1, 1)
    assert packing["gemm_keep_pack"].grid == (1, 1, 1)
    assert TENSOR3XFP16_SM90.kept_bytes(problem) >= 256 + 4 * 1000 + 17 * 32 * 1000 * 4
    plain = problem_of((300, 1000, 515))
    assert TENSOR3XFP16_SM90.kept_bytes(plain) == 0
    assert TENSOR3XFP16_SM90.packing_launches("gemm", VALUES, plain) == []


def test_the_workspace_holds_what_is_known_and_three_parts_of_every_number():
    problem = problem_of((300, 1000, 515))
    lines = 38 * 8 + 125 * 8
    expected = 256 + 256 + 5376 + 22 * 1000 * 16 + 17 * 32 * lines * 6
    beyond = 2 * (2 * 256 * 192)  # what a tile that juts out may read
    found = space.workspace_bytes(VALUES, problem)
    assert expected + beyond <= found <= expected + beyond + 4 * 255
    along_k = space.workspace_bytes(VALUES, problem_of((300, 1000, 515), trans_b=True))
    assert found - along_k == -(-22 * 1000 * 16 // 256) * 256
    shared = space.workspace_bytes(Values({**VALUES, "SPLIT_K": 2}), problem)
    assert shared - found == 2 * 2 * 5 * 2 * 4 + 2 * (2 * 2 * 5 * 2) * 4 * 128 * 208  # counters; two tiles a block


@needs_nvrtc
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("kernel", "sizes", "options"),
    [
        pytest.param("gemm", (4096, 4096, 4096), {}, marks=EXHAUSTIVE),
        ("gemm", (1023, 1025, 1027), {"trans_a": True, "trans_b": True, "beta_zero": False}),
        ("linear", (300, 513, 2050), {"activation": "gelu"}),
        pytest.param("linear", (300, 512, 2048), {"packed_b": True}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_configurations_compile_to_what_the_space_says(kernel, sizes, options):
    declared, problem = catalogue().get(kernel), problem_of(sizes, kernel, **options)
    variant = declared.variant(NAME)
    for configuration in random.Random(str(sizes)).sample(declared.space(problem, H200, [NAME]).feasible, 1):
        compiled = assert_resources_suffice(declared, problem, configuration, H200, most_spilled=MOST_SPILLED)
        launches = variant.launches(kernel, configuration.values, problem)
        assert compiled.function(kernel) == (compiled.cubin, kernel)
        for entry, _ in (*launches[:-1], *variant.packing_launches(kernel, configuration.values, problem)):
            assert f".text.{entry}\0".encode() in compiled.shared
            assert compiled.function(entry) == (compiled.shared, entry)


@pytest.mark.parametrize(("k", "is_of_use"), [(2**28, True), (2**30, False)])
def test_steps_of_all_tiles_that_32_bits_do_not_count_are_not_split(k, is_of_use):
    values = Values({**VALUES, "CLUSTER": 1, "SPLIT_K": 2})
    problem = problem_of((128 * 20, 208 * 10, k))
    assert space.clusters(values, problem) == 200
    assert space.split_is_of_use(values, problem, H200) is is_of_use
    assert space.is_sound_at_launch(values, problem, H200) is is_of_use


VARIANT = small.TENSOR3XFP16_SMALL_SM90
DEFAULT = VARIANT.space().default().values
ON_HOST = {"RESIDENT": 4}  # of blocks of which a host's 48 KiB of shared memory hold one


def of_sizes(m, n, k, batch=1, kernel=KERNEL, **options):
    axes = {"m": m, "n": n, "k": k, **({"batch": batch} if batch > 1 else {})}
    return kernel.problem(axes, options=options)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose tensor cores work on the host."""
    return small_on_host(KERNEL, tmp_path_factory.mktemp("kernels"))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("sizes", "options", "fixed"),
    [
        pytest.param((64, 64, 64, 2), {}, {}, marks=EXHAUSTIVE),
        ((61, 59, 77, 2), {"trans_a": True}, {"TILE_K": 32}),
        ((40, 70, 70, 1), {"trans_a": True, "trans_b": True}, {"TILE_K": 32}),
        ((64, 52, 64, 2), {"beta_zero": False}, {"TILE_K": 32, "SLICES": 2}),
        pytest.param((33, 30, 33, 3), {"trans_b": True}, {"TILE_K": 32}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_every_kind_of_inputs(hosted, device, sizes, options, fixed):
    problem = of_sizes(*sizes, kernel=hosted, **options)
    configuration = Configuration.of(VARIANT.name, {**DEFAULT, **ON_HOST, **fixed})
    assert_right_for_each_kind(device, hosted, problem, configuration)


@pytest.mark.parametrize(
    "sizes",
    [(64, 64, 64, 512), (48, 9, 32, 1000), (128, 128, 64, 64), (512, 512, 512), (9, 9, 40), (300, 7, 65)],
    ids=str,
)
def test_a_search_begins_with_a_feasible_configuration(sizes):
    problem, space = of_sizes(*sizes), VARIANT.space()
    assert VARIANT in KERNEL.usable_variants(problem, H200)
    assert space.violated(space.start_for(problem, H200).values, problem, H200) is None


def test_it_is_for_small_products_on_hopper():
    def usable(sizes, limits=H200, **options):
        return VARIANT in KERNEL.usable_variants(of_sizes(*sizes, **options), limits)

    assert usable((512, 512, 512))
    assert not usable((1024, 1024, 512))
    assert not usable((64, 64, 513, 64))
    assert not usable((64, 64, 31, 64))
    assert not usable((32, 32, 32, 1024))
    assert not usable((64, 64, 64, 512), accuracy="tf32")
    assert not usable((64, 64, 64, 512), replace(H200, compute_capability=(8, 0)))
    assert not usable((64, 64, 64, 512), replace(H200, shared_bytes_per_multiprocessor=100 * 1024))


@pytest.mark.parametrize(
    "sizes", [(1, 7, 32), (512, 512, 300), (17, 200, 511), (61, 59, 77, 500), (40, 16, 33, 1000)], ids=str
)
@pytest.mark.parametrize("trans_b", [False, True])
def test_no_more_blocks_find_room_than_fall_to_a_multiprocessor(sizes, trans_b):
    problem = of_sizes(*sizes, trans_b=trans_b)
    feasible = SearchSpace((VARIANT.space(),), problem, H200).feasible
    assert len(feasible)
    for configuration in feasible:
        c = configuration.values
        begun = small.launch(c, problem)
        taken = begun.shared_bytes + small.ALIGNMENT_BYTES + 1024
        assert begun.overlaps
        assert c.RESIDENT * taken <= H200.shared_bytes_per_multiprocessor
        assert (c.RESIDENT + 1) * (begun.shared_bytes + 1024) > H200.shared_bytes_per_multiprocessor


@needs_nvrtc
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "fixed"),
    [
        ((64, 64, 64, 512), {"RESIDENT": 4}),
        ((48, 48, 32, 512), {"TILE_K": 32, "RESIDENT": 4}),
        ((512, 512, 512), {"SLICES": 4, "SPLIT_K": 2}),
        ((512, 512, 512), {"SLICES": 2, "SPLIT_K": 2}),
    ],
    ids=str,
)
def test_registers_suffice(sizes, fixed):
    problem = of_sizes(*sizes)
    configuration = Configuration.of(VARIANT.name, {**DEFAULT, **fixed})
    assert_resources_suffice(KERNEL, problem, configuration, H200, configuration.values.RESIDENT)
