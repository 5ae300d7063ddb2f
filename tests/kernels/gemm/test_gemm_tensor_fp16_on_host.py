"""tensor_fp16_sm90.cu on the host, Hopper's instructions emulated: layouts, edges, parts, batches."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.launches_on_host import needs_cpp_library
from contracts.packed_on_host import packed_on_host

from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.loop.verify import compare

GEMM = replace(KERNEL, variants=(TENSOR3XFP16_SM90,), default_variant=TENSOR3XFP16_SM90.name)
SCALARS = {"alpha": 2.0, "beta": 0.5}
EXHAUSTIVE = pytest.mark.exhaustive
MORE_KINDS = (
    "mixed",
    "special",
    "special-2",
    "pixels",
    "large",
    "small-by-large",
    "small",
    "ones",
    "zeros",
    "smallest",
)


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """Nothing here goes without one."""
    needs_cpp_library()


def configuration_of(**values):
    """The smallest tiles."""
    usual = {"TILE_M": 64, "TILE_N": 64, "BLOCKS": 7, "PROMOTE_K": 64}
    parameters = {p.name: p.default for p in TENSOR3XFP16_SM90.parameters}
    return Configuration.of(TENSOR3XFP16_SM90.name, parameters | usual | values)


def problem_of(sizes, layout="", **axes):
    """A float32 problem; `layout` names the transposed operands."""
    options = {"trans_a": "a" in layout, "trans_b": "b" in layout, "beta_zero": layout != "a"}
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)) | axes, "float32", options)


def placed(tensor, problem, numbers):
    """The numbers as the tensor lies in memory."""
    return tensor.layout(problem).placed(numbers.astype(np.float32))


def normal(problem, seed=1):
    """Standard normal arrays."""
    generator = np.random.default_rng(seed)
    return {t.name: placed(t, problem, generator.standard_normal(t.layout(problem).own_shape)) for t in GEMM.tensors}


def verified(packed, problem, arrays):
    """One launch on these arrays, compared."""
    with np.errstate(invalid="ignore", over="ignore"):
        reference = GEMM.reference(problem, arrays, SCALARS)
    held = {
        t.name: placed(t, problem, arrays[t.name][tuple(slice(n) for n in t.layout(problem).own_shape)])
        for t in GEMM.tensors
    }
    packed.launch(held, SCALARS)
    assert all(np.array_equal(held[name], arrays[name], equal_nan=True) for name in "AB")
    return compare(held["C"], reference, "float32")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("sizes", "layout", "values"),
    [
        ((70, 130, 200), "", {}),
        pytest.param((65, 67, 129), "a", {}, marks=EXHAUSTIVE),
        pytest.param((64, 64, 256), "b", {}, marks=EXHAUSTIVE),
        ((33, 129, 131), "ab", {"TILE_N": 72}),
        ((70, 67, 1300), "b", {"SPLIT_K": 4, "TILE_N": 72}),  # lines of several warps; seven blocks share four tiles
        pytest.param((64, 192, 500), "", {"SPLIT_K": 3, "BLOCKS": 5}, marks=EXHAUSTIVE),  # parts of unequal length
        pytest.param(
            (64, 200, 400), "", {"SPLIT_K": 2, "BLOCKS": 3}, marks=EXHAUSTIVE
        ),  # whole tiles between two parts
        pytest.param((20, 24, 16500), "ab", {}, marks=EXHAUSTIVE),  # B's lines are too long for a block
        pytest.param((24, 20, 16500), "ab", {"SPLIT_K": 8}, marks=EXHAUSTIVE),
        pytest.param(
            (70, 67, 130), "", {"batch": 3, "lda": 131, "ldb": 72, "ldc": 68, "stride_b": 0}, marks=EXHAUSTIVE
        ),
        ((33, 68, 256), "ab", {"batch": 3, "lda": 40, "ldb": 260, "stride_a": 0, "SPLIT_K": 2, "BLOCKS": 5}),
        ((20, 24, 16500), "a", {"batch": 2, "lda": 20, "ldb": 48, "stride_b": 24}),  # rows of B take turns
        pytest.param(
            (70, 132, 64), "", {"PROMOTE_K": 32}, marks=EXHAUSTIVE
        ),  # one block has several tiles, of several steps
        ((70, 67, 65), "a", {"PROMOTE_K": 32, "TILE_N": 72}),
        pytest.param((130, 135, 90), "ab", {"BLOCKS": 2, "PROMOTE_K": 32}, marks=EXHAUSTIVE),
        pytest.param((70, 67, 130), "", {"batch": 3, "ldc": 69, "SPLIT_K": 2, "BLOCKS": 3}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_products_are_right_launch_after_launch(tmp_path, sizes, layout, values):
    problem = problem_of(sizes, layout, **{name: size for name, size in values.items() if name.islower()})
    values = {name: value for name, value in values.items() if name.isupper()}
    packed = packed_on_host(GEMM, problem, configuration_of(**values), tmp_path)
    arrays = normal(problem)
    own = arrays["A"][tuple(slice(n) for n in GEMM.tensors[0].layout(problem).own_shape)]
    spread = np.ldexp(own, np.random.default_rng(3).integers(-30, 30, own.shape))
    for given in (arrays, arrays | {"A": placed(GEMM.tensors[0], problem, spread)}, arrays):
        verification = verified(packed, problem, given)
        assert verification.bound_ratio < 1, verification.message()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("split_k", [pytest.param(1, marks=EXHAUSTIVE), 3])
def test_infinities_and_nan_come_out_as_of_fp32_arithmetic(tmp_path, split_k):
    problem = problem_of((70, 67, 500))
    packed = packed_on_host(GEMM, problem, configuration_of(SPLIT_K=split_k), tmp_path)
    arrays = normal(problem)
    a, b = arrays["A"], arrays["B"]
    a[3, 5], a[17, 400], a[69, 99], a[64, 0], a[64, 1] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    b[7, 11], b[498, 60], b[5, 40], b[5, 41] = -np.inf, np.nan, 0, 1e-42
    verification = verified(packed, problem, arrays)
    assert verification.wrong == 0, verification.message()


def scaled_lines(problem, span, seed=5):
    """Normal factors, each line of them times a power of two of its own, from 2^-span to 2^span."""
    generator, arrays = np.random.default_rng(seed), normal(problem, seed)
    for name, axis in (("A", 0), ("B", 1)):
        tensor = next(t for t in GEMM.tensors if t.name == name)
        own = arrays[name][tuple(slice(n) for n in tensor.layout(problem).own_shape)]
        across = 1 - axis if problem.options["trans_" + name.lower()] else axis
        shape = (-1, 1) if across == 0 else (1, -1)
        exponents = generator.integers(-span, span, own.shape[across], endpoint=True).reshape(shape)
        arrays[name] = placed(tensor, problem, np.ldexp(own, exponents))
    return arrays


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "layout", "span"),
    [
        ((70, 130, 200), "", 20),
        ((65, 67, 129), "a", 60),
        pytest.param((33, 68, 1300), "b", 20, marks=EXHAUSTIVE),
        pytest.param((70, 130, 200), "", 60, marks=EXHAUSTIVE),
        pytest.param((20, 24, 16500), "ab", 60, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_lines_of_large_and_small_numbers_stay_right(tmp_path, sizes, layout, span):
    """Where an exponent was compared as an unsigned number, each line with a number of 2^15 or more became NaN."""
    problem = problem_of(sizes, layout)
    packed = packed_on_host(GEMM, problem, configuration_of(), tmp_path)
    arrays = scaled_lines(problem, span)
    for given in (arrays, arrays | {"A": np.ldexp(arrays["A"], 40)} if span == 20 else arrays):
        verification = verified(packed, problem, given)
        assert verification.wrong == 0, verification.message()


@pytest.mark.parametrize("kind", ["lines", "large-by-small", *(pytest.param(k, marks=EXHAUSTIVE) for k in MORE_KINDS)])
def test_every_kind_that_is_made_line_by_line(tmp_path, kind):
    problem = problem_of((70, 70, 130))
    packed = packed_on_host(GEMM, problem, configuration_of(), tmp_path)
    own = random_arrays(GEMM, problem, 3, kind)
    arrays = normal(problem) | {name: array.astype(np.float32) for name, array in own.items()}
    for _ in range(2):  # what a launch leaves in the workspace is nothing to the next one
        verification = verified(packed, problem, arrays)
        assert verification.wrong == 0, verification.message()
