"""gemm's views and batches: keys, what is refused, where matrices lie; right on the CPU device."""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from contracts.variant import needs_nvrtc
from faulty_kernels import with_change
from sampling import sampled

from tilewright.kernels.enumeration.configuration import Configuration
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.fields.axes import Layout
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import limits_of
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.verify import C_DEFAULT
from tilewright.tuner.outcome import Outcome, Verification

PLAIN = {"m": 4, "n": 5, "k": 6}
NAIVE = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8})


def test_a_problem_with_every_axis_at_its_default_keeps_the_key_that_it_had() -> None:
    problem = GEMM.problem(PLAIN)
    filled = GEMM.problem({**problem.shape})

    assert problem.hash == "e06ffa65bd3037b50213af949b3d8715b01e6dc1f0efb2bc65cc17c3237409c4"
    assert filled == problem
    assert problem.shape["stride_b"] == 30
    assert not {"SHAPE_BATCH", "SHAPE_LDA"} & GEMM.definitions(problem, NAIVE).keys()


def test_what_is_not_at_its_default_is_part_of_the_key_and_of_the_macros() -> None:
    problem = GEMM.problem({**PLAIN, "batch": 3, "lda": 8, "stride_b": 0})

    assert problem.as_json()["shape"] == {**PLAIN, "batch": 3, "lda": 8, "stride_b": 0}
    assert (problem.shape["stride_a"], problem.shape["ldc"]) == (32, 5)
    macros = GEMM.definitions(problem, NAIVE)
    assert (macros["SHAPE_BATCH"], macros["SHAPE_LDA"], macros["SHAPE_STRIDE_B"]) == ("3", "8", "0")
    assert "SHAPE_STRIDE_A" not in macros
    assert pickle.loads(pickle.dumps(problem)).shape == problem.shape  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("axes", "field", "example"),
    [
        ({"lda": 5}, "shape.lda", "lda=6"),
        ({"batch": 0}, "shape.batch", "batch=1"),
        ({"stride_a": 77}, "shape.stride_a", "stride_a=24"),
        ({"batch": 2, "stride_c": 0}, "shape.stride_c", "stride_c=20"),
        ({"batch": 2, "stride_c": 19}, "shape.stride_c", "stride_c=20"),
        ({"batch": 2, "stride_a": 3}, "shape.stride_a", "stride_a=24"),
        ({"batch": 2, "stride_a": -24}, "shape.stride_a", "stride_a=24"),
        ({"batch": True}, "shape.batch", "batch=1"),
    ],
)
def test_an_axis_that_does_not_fit_is_named_with_one_that_would(axes: dict[str, int], field: str, example: str) -> None:
    with pytest.raises(InvalidProblemError) as error:
        GEMM.problem({**PLAIN, **axes})

    assert (error.value.field, error.value.example) == (field, example)


def test_rows_of_the_matrices_of_a_batch_may_take_turns() -> None:
    problem = GEMM.problem({**PLAIN, "batch": 2, "ldc": 10, "stride_c": 5})
    c = GEMM.output.layout(problem)

    assert (c.shape, c.strides, c.elements) == ((2, 4, 5), (5, 10, 1), 40)


def test_the_padding_of_a_placed_tensor_is_nan_and_shared_matrices_lie_there_once() -> None:
    padded, shared = Layout((2, 3, 4), (20, 6, 1)), Layout((7, 3, 4), (0, 4, 1))
    numbers = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    memory = padded.memory_of(padded.placed(numbers))
    assert memory.size == 20 + 2 * 6 + 4
    assert np.isnan(memory).sum() == memory.size - 24
    np.testing.assert_array_equal(padded.view(memory), numbers)
    assert shared.elements == 12
    assert shared.placed(numbers[:1]).shape == (7, 3, 4)


def test_work_counts_cover_the_batch_and_read_what_it_shares_once() -> None:
    batched = GEMM.problem({**PLAIN, "batch": 3, "stride_b": 0})

    assert GEMM.flops(batched) == 3 * GEMM.flops(GEMM.problem(PLAIN))
    assert GEMM.bytes_moved(batched) == 4 * (3 * 24 + 30 + 3 * 20)


SHAPE = {"m": 19, "n": 24, "k": 20}
VIEWS = {
    "slices": {"lda": 28, "ldb": 32, "ldc": 25},
    "slices by quads": {"lda": 28, "ldb": 32, "ldc": 28},
    "a batch": {"batch": 3},
    "a shared operand": {"batch": 3, "stride_b": 0, "lda": 24},
    "rows that take turns": {"batch": 2, "lda": 64, "stride_a": 28, "ldc": 52, "stride_c": 25},
}
LAYOUTS = [
    {},
    {"trans_a": True, "beta_zero": False},
    {"trans_b": True},
    {"trans_a": True, "trans_b": True, "beta_zero": False},
]


def verified(device: CpuDevice, kernel: Kernel, problem: Problem, variant: str) -> Verification:
    bench = device.bench(kernel, problem, seed=5)
    try:
        (start,) = kernel.space(problem, device.model.limits, only=[variant]).defaults()
        return bench.verify(bench.compile(start))
    finally:
        bench.close()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("variant", ["naive", "tiled", "wpt"])
def test_views_and_batches_are_right(device: CpuDevice, variant: str, view: str, options: dict[str, bool]) -> None:
    dtype = "float64" if options.get("trans_b") else "float32"

    found = verified(device, GEMM, GEMM.problem({**SHAPE, **VIEWS[view]}, dtype, options), variant)

    assert found.wrong == 0
    assert found.bound_ratio < C_DEFAULT


def test_what_is_written_between_rows_fails_the_trial(device: CpuDevice, tmp_path: Path) -> None:
    write = "write_c(C + matrix * STRIDE_C, row, column, alpha, sum, beta);"
    kernel = with_change(
        GEMM, tmp_path, "naive.cu", write, f"{write}\n    if (column == 0 && row + 1 < M) C[row * LDC + N] = sum;"
    )

    with pytest.raises(TrialFailure, match="18 elements between the rows of C were written") as failure:
        verified(device, kernel, GEMM.problem({**SHAPE, "ldc": 25}), "naive")
    assert failure.value.outcome is Outcome.WRONG_RESULT


def test_the_first_wrong_component_of_a_batch_is_named_by_matrix_row_and_column(
    device: CpuDevice, tmp_path: Path
) -> None:
    kernel = with_change(GEMM, tmp_path, "naive.cu", "Sum sum = 0;", "Sum sum = matrix == 1 && row == 2 ? 1e6 : 0;")

    found = verified(device, kernel, GEMM.problem({**SHAPE, "batch": 2, "ldc": 30}), "naive")

    assert (found.wrong, found.first_wrong) == (24, (1, 2, 0))


def test_the_library_times_views_and_batches_too(device: CpuDevice) -> None:
    bench = device.bench(GEMM, GEMM.problem({**SHAPE, **VIEWS["rows that take turns"]}), seed=5)
    try:
        library = bench.library()
        assert library is not None
        assert all(time_ms > 0 for time_ms in bench.sample(library, "warm", 2))
    finally:
        bench.close()


HOPPER = limits_of((9, 0))
EVEN, ODD = {"m": 192, "n": 160, "k": 256}, {"m": 193, "n": 161, "k": 255}
PLACEMENTS = {
    "rows of 16 bytes": (EVEN, None, None),
    "odd rows": (ODD, None, None),
    "odd distances of rows": (EVEN, 3, None),
    "one matrix for all": (ODD, 3, 0),
    "matrices that start anywhere": (EVEN, 0, 1),
    "matrices that start at 8 bytes": (EVEN, 4, 2),
}
"""Sizes; elements between the rows of A, B and C; between their matrices, 0 where the products share A and B."""

TWO_WAYS = "SHARED_A"
"""A parameter by which operands change places, where a variant has it: both values are compiled."""

TURNED = list(itertools.product((False, True), repeat=2))


def placed(sizes, options, row_gap, matrix_gap):
    """The shape with the optional axes that say so."""
    shape = dict(sizes)
    for matrix in "abc":
        rows, length = stored_rows(matrix, sizes, options)
        if row_gap is not None:
            shape[f"ld{matrix}"] = length + row_gap
        if matrix_gap is not None:
            apart = rows * (length + row_gap) + matrix_gap
            shape |= {"batch": 3, f"stride_{matrix}": 0 if matrix_gap == 0 and matrix != "c" else apart}
    return shape


def problem_for(variant, shape, layout):
    """In the first dtype and accuracy that the variant has such a problem in; None where it has none."""
    options = dict(zip(("trans_a", "trans_b"), layout, strict=True))
    for dtype, accuracy in itertools.product(KERNEL.dtypes, ("fp32", "tf32")):
        try:
            problem = KERNEL.problem(shape, dtype, options | {"accuracy": accuracy})
        except InvalidProblemError:
            continue  # the accuracy is another dtype's
        if variant in KERNEL.usable_variants(problem, HOPPER):
            return problem
    return None


def is_hopper_split(variant_name, layout, _placement):
    """Of the variant that loads in the most ways both operands along k, and neither."""
    return variant_name == "tensor3xtf32_sm90" and layout in {(False, True), (True, False)}


@pytest.mark.in_turn(3)
@needs_nvrtc
@pytest.mark.parametrize(
    ("variant_name", "layout", "placement"),
    sampled(itertools.product((v.name for v in KERNEL.variants), TURNED, PLACEMENTS), is_hopper_split),
)
def test_matrices_may_lie_in_any_way(variant_name, layout, placement):
    variant, (sizes, *gaps) = KERNEL.variant(variant_name), PLACEMENTS[placement]
    shape = placed(sizes, dict(zip(("trans_a", "trans_b"), layout, strict=True)), *gaps)
    problem = problem_for(variant, shape, layout)
    if problem is None:
        pytest.skip("no such problem of this variant")
    feasible = KERNEL.space(problem, HOPPER, only=[variant_name]).feasible
    ways = {}
    for configuration in random.Random(variant_name).sample(feasible, min(40, len(feasible))):
        ways.setdefault(dict(configuration.items).get(TWO_WAYS), configuration)
    options = ["--gpu-architecture=compute_90a", "--fdevice-syntax-only", *OPTIONS]
    for configuration in ways.values():
        definitions = [f"-D{name}={value}" for name, value in KERNEL.definitions(problem, configuration).items()]
        _, log = nvrtc.compile_cubin(KERNEL.source(variant_name), [*options, *definitions])
        assert "warning" not in log, log
