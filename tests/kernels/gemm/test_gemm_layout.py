"""gemm's views and batches: keys, what is refused, and where the matrices lie."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tilewright.kernels.axes import Layout
from tilewright.kernels.configuration import Configuration
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.gemm.declaration import KERNEL as GEMM

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
