"""gemm's views and batches on the CPU device: right, nothing read or written between rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_kernels import with_change

from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.verify import C_DEFAULT
from tilewright.tuner.outcome import Outcome, Verification

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
