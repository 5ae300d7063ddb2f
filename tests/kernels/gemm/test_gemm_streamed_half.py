"""The variant `streamed_half` of gemm, linear and linear_gated: what it takes, what sources keep."""

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import A100, H200, assert_resources_suffice, assert_right, drawn, needs_nvrtc

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm.streamed_half_space import STREAMED_HALF

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
