"""The variants `streamed_half` and `streamed_half_sm90` of gemm, linear and linear_gated."""

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import A100, H200, assert_resources_suffice, assert_right, drawn, needs_nvrtc, parameters_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm import streamed_half_sm90_space as space
from tilewright.kernels.gemm.streamed_half_space import STREAMED_HALF
from tilewright.kernels.kernel import TensorMap
from tilewright.kernels.space import Values

NAME = STREAMED_HALF.name
GEMM = catalogue().get("gemm")


def problem_of(sizes, kernel=GEMM, dtype="bfloat16", **options):
    """A problem by its sizes, m n k or named."""
    return kernel.problem(sizes if isinstance(sizes, dict) else dict(zip("mnk", sizes, strict=True)), dtype, options)


@pytest.mark.parametrize(
    ("sizes", "options", "is_taken"),
    [
        ((64, 7, 64), {"trans_b": True}, True),
        ((65, 512, 512), {"trans_b": True}, False),
        ((1, 512, 512), {}, False),  # lines of B lie across k
        ((8, 512, 508), {"trans_b": True}, False),  # rows have 1016 bytes
        ({"m": 8, "n": 64, "k": 60, "lda": 64, "ldb": 64}, {"trans_b": True}, False),  # the last load has 8 bytes
        ({"m": 8, "n": 64, "k": 64, "batch": 2, "stride_a": 0}, {"trans_b": True}, True),
        ({"m": 8, "n": 64, "k": 64, "batch": 2, "stride_b": 64 * 64 + 4}, {"trans_b": True}, False),
    ],
    ids=str,
)
def test_few_rows_of_whole_loads_are_taken(sizes, options, is_taken):
    assert STREAMED_HALF.admits(problem_of(sizes, **options), H200) is is_taken


@pytest.mark.parametrize(
    ("kernel", "sizes", "dtype", "options", "state"),
    [
        ("gemm", (64, 4096, 4096), "bfloat16", {}, "cold"),
        ("gemm", (65, 4096, 4096), "bfloat16", {}, "warm"),
        ("gemm", (64, 4096, 4096), "float32", {}, "warm"),
        ("gemm", {"m": 64, "n": 64, "k": 64, "batch": 512}, "float16", {}, "warm"),  # of activations alone
        ("linear", (1, 4096, 4096), "float16", {"activation": "relu"}, "cold"),
        ("linear_gated", (2048, 4096, 4096), "float16", {}, "cold"),
        ("rms_norm", {"m": 8, "n": 4096}, "bfloat16", {}, "warm"),
    ],
    ids=str,
)
def test_where_few_rows_stream_the_weights_a_cold_cache_ranks(kernel, sizes, dtype, options, state):
    kernel = catalogue().get(kernel)
    assert kernel.l2_of(problem_of(sizes, kernel, dtype, **options)) == state


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("kernel", "sizes", "dtype", "options", "fixed"),
    [
        ("gemm", (5, 40, 200), "bfloat16", {"trans_b": True, "beta_zero": False}, {"ROWS": 2, "UNROLL": 1, "WALK": 0}),
        (
            "gemm",
            {"m": 9, "n": 24, "k": 520, "batch": 2, "ldb": 528, "stride_a": 0},
            "float16",
            {"trans_b": True, "output": "float32"},
            {"WARPS": 4, "UNROLL": 2, "WALK": 2},
        ),
        ("gemm", (16, 33, 520), "bfloat16", {"trans_b": True}, {"WARPS": 4, "WALK": 1}),
        ("linear_gated", (3, 33, 136), "bfloat16", {}, {"WARPS": 4}),
        ("linear_gated", (17, 33, 136), "bfloat16", {}, {"WARPS": 4}),
    ],
    ids=str,
)
def test_products_are_right_on_the_host(tmp_path, device, *, kernel, sizes, dtype, options, fixed):
    kernel = catalogue().get(kernel)
    hosted = tensor_on_host(kernel, [kernel.variant(NAME)], tmp_path)
    problem = problem_of(sizes, hosted, dtype, **options)
    [configuration] = drawn(hosted.variants[0], problem, H200, sizes, **fixed)
    assert_right(device, hosted, problem, configuration)


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "sizes", "options", "limits"),
    [
        ("gemm", (8, 4096, 4096), {"trans_b": True}, H200),
        ("linear", (33, 1001, 2056), {"activation": "gelu", "output": "float32"}, A100),
        ("linear_gated", (64, 14336, 4096), {}, H200),
    ],
    ids=str,
)
def test_configurations_compile_to_what_the_space_says(kernel, sizes, options, limits):
    kernel = catalogue().get(kernel)
    problem = problem_of(sizes, kernel, **options)
    for configuration in drawn(kernel.variant(NAME), problem, limits, sizes, 2):
        assert_resources_suffice(kernel, problem, configuration, limits)


SM90 = "streamed_half_sm90"

GATED = catalogue().get("linear_gated")

VALUES = space.STREAMED_HALF_SM90.space().default().values


@pytest.mark.parametrize(
    ("sizes", "options", "is_taken"),
    [
        ((64, 7, 64), {"trans_b": True}, True),
        ((1, 512, 512), {}, True),
        ((65, 512, 512), {}, False),
        ((8, 512, 508), {"trans_b": True}, False),  # rows have 1016 bytes
        ((8, 508, 512), {}, False),
        ((8, 512, 512), {"trans_a": True}, False),
        ({"m": 8, "n": 64, "k": 60, "lda": 64}, {}, False),  # rows of A end within 16 bytes
        ({"m": 8, "n": 60, "k": 64, "ldb": 64}, {}, False),
        ({"m": 8, "n": 60, "k": 64, "lda": 72, "ldb": 72}, {"trans_b": True}, True),
        ({"m": 8, "n": 64, "k": 64, "batch": 2, "stride_a": 0}, {}, True),
        ({"m": 8, "n": 64, "k": 64, "batch": 2, "stride_b": 64 * 64 + 4}, {}, False),
    ],
    ids=str,
)
def test_few_rows_that_begin_and_end_at_16_bytes_are_taken(sizes, options, is_taken):
    assert space.STREAMED_HALF_SM90.admits(problem_of(sizes, **options), H200) is is_taken


def test_boxes_are_steps_of_the_tile_and_of_all_rows():
    values = Values({**VALUES, "TILE_N": 128})
    along, across = (space.tensor_maps(values, problem_of((17, 512, 512), trans_b=flag)) for flag in (True, False))
    assert along == (TensorMap("A", (1, 32, 64)), TensorMap("B", (1, 128, 64)))
    assert across[1] == TensorMap("B", (1, 64, 64))
    gated = GATED.variant(SM90).tensor_maps(values, problem_of((1, 512, 512), GATED))
    assert gated == (TensorMap("X", (1, 8, 64)), TensorMap("W", (1, 128, 64)))


def test_a_ring_has_no_more_stages_than_a_block_has_steps():
    assert space.stages(VALUES, problem_of((8, 4096, 4096), trans_b=True)) == (228 - 3) * 1024 // (72 * 128)
    assert space.stages(VALUES, problem_of((8, 4096, 256), trans_b=True)) == 4


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "sizes", "options"),
    [
        ("gemm", (8, 4096, 4096), {"trans_b": True}),
        ("gemm", (64, 1000, 4096), {"output": "float32", "beta_zero": False}),
        ("linear", (16, 1001, 2048), {"activation": "gelu"}),
        ("linear_gated", (64, 14336, 4096), {}),
    ],
    ids=str,
)
def test_configurations_compile_to_what_the_space_says_on_hopper(kernel, sizes, options):
    kernel = catalogue().get(kernel)
    problem = problem_of(sizes, kernel, **options)
    for configuration in drawn(kernel.variant(SM90), problem, H200, sizes, 2):
        compiled = assert_resources_suffice(kernel, problem, configuration, H200, configuration.values.RESIDENT)
        assert parameters_of(compiled.cubin)[-2:] == [128, 128]


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ((16, 14336, 4096), {"RESIDENT": 2, "DEPTH": 4}),
        ((64, 4096, 14336), {"SPLIT_K": 2, "DEPTH": 8}),
        ((32, 6144, 4096), {"SPLIT_K": 1, "DEPTH": 8}),
    ],
)
def test_a_search_begins_with_few_steps_under_way(sizes, values):
    (start,) = GEMM.space(problem_of(sizes, trans_b=True), H200, [SM90]).defaults()
    assert {name: start.values[name] for name in values} == values


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ((1, 4096, 1024), {"SPLIT_K": 2, "DEPTH": space.MOST_DEPTH}),
        ((8, 4096, 384), {"SPLIT_K": 1, "DEPTH": space.MOST_DEPTH}),
        ((16, 16384, 256), {"RESIDENT": 2, "DEPTH": space.MOST_DEPTH}),
    ],
)
def test_of_few_steps_all_are_under_way(sizes, values):
    problem = problem_of(sizes, trans_b=True)
    start = space.STREAMED_HALF_SM90.space().start_for(problem, H200)
    assert start in GEMM.space(problem, H200, [SM90])
    assert {name: start.values[name] for name in values} == values
