"""NVIDIA's libraries beside the gallery, called through CuPy: what each computes, and how long one call takes.

CuPy is no dependency of Tilewright: where it cannot be imported, rows have the library's name and no time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.loop import statistics

SEED, WARM_UP, CALLS = 1, 3, 30

EVICTED_BYTES = 1 << 30
"""Read before each call: it empties the L2 cache, and lasts longer than Python takes to enqueue the call."""

NAMES = {
    "bitonic_sort": "PyTorch's sort, with places",
    "fft": "cuFFT",
    "histogram": "CUB, even bins",
    "reduction": "CUB (cupy.sum)",
    "scan": "CUB, in place",
    "spmv": "cuSPARSE (cupyx.scipy.sparse)",
    "transpose": "CuPy's copy",
}
"""By kernel; nothing that NVIDIA ships computes a stencil or an n-body step.

Some of CuPy's functions do more than the library: cupyx.scipy.fft.fft copies a view, cumsum its input, histogram
converts integers, and sort orders pairs of row and value. So cuFFT and CUB are called below them, and rows are sorted
by PyTorch, which returns places too.
"""


def library_ms(kernel: Kernel, problem: Problem) -> float | None:
    """The median time of the library's call on the kernel's own inputs; None without a library, or without CuPy.

    The L2 cache is cold, as for our time where the kernel ranks cold; else the call is its own warm-up.
    """
    if kernel.name not in NAMES:
        return None
    os.environ["CUPY_ACCELERATORS"] = "cub"  # read when CuPy is imported
    try:
        import cupy  # noqa: PLC0415 - a GPU's, and not among our dependencies
    except ImportError:
        return None
    inputs = {name: cupy.asarray(array) for name, array in random_arrays(kernel, problem, SEED).items()}
    call = _CALLS[kernel.name](cupy, inputs, problem)
    evicted = cupy.zeros(EVICTED_BYTES // 4, cupy.float32) if kernel.ranking_l2 == "cold" else None
    return statistics.median([_timed(cupy, call, evicted) for _ in range(WARM_UP + CALLS)][WARM_UP:])


def _timed(cupy: Any, call: Callable[[], Any], evicted: Any) -> float:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    if evicted is None:
        call()
    else:
        evicted.max()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end))


def _transpose(cupy: Any, inputs: dict[str, Any], _problem: Problem) -> Callable[[], Any]:
    x = inputs["x"]
    y = cupy.empty(x.shape[::-1], x.dtype)
    return lambda: cupy.copyto(y, x.T)


def _reduction(_cupy: Any, inputs: dict[str, Any], _problem: Problem) -> Callable[[], Any]:
    return inputs["x"].sum  # type: ignore[no-any-return]


def _scan(cupy: Any, inputs: dict[str, Any], _problem: Problem) -> Callable[[], Any]:
    cub = cupy.cuda.cub
    return lambda: cub.device_scan(inputs["x"], cub.CUPY_CUB_CUMSUM)


def _histogram(cupy: Any, inputs: dict[str, Any], problem: Problem) -> Callable[[], Any]:
    bins = problem.shape["bins"]
    counts = cupy.zeros(bins, cupy.int64)
    return lambda: cupy.cuda.cub.device_histogram(inputs["x"], counts, bins + 1)


def _sort(_cupy: Any, inputs: dict[str, Any], _problem: Problem) -> Callable[[], Any]:
    import torch  # noqa: PLC0415 - see above

    x = torch.from_dlpack(inputs["x"])
    return lambda: torch.sort(x, dim=1)


def _fft(cupy: Any, inputs: dict[str, Any], problem: Problem) -> Callable[[], Any]:
    from cupyx.scipy import fft  # noqa: PLC0415 - see above

    x = inputs["x"].view(cupy.complex64 if problem.dtype == "float32" else cupy.complex128)[..., 0]
    plan, y = fft.get_fft_plan(x, axes=1), cupy.empty_like(x)
    return lambda: plan.fft(x, y, cupy.cuda.cufft.CUFFT_FORWARD)


def _spmv(_cupy: Any, inputs: dict[str, Any], problem: Problem) -> Callable[[], Any]:
    from cupyx.scipy import sparse  # noqa: PLC0415 - see above

    parts = inputs["values"], inputs["columns"], inputs["row_start"]
    matrix = sparse.csr_matrix(parts, shape=(problem.shape["m"], problem.shape["n"]))
    return lambda: matrix @ inputs["x"]


_CALLS: dict[str, Callable[[Any, dict[str, Any], Problem], Callable[[], Any]]] = {
    "bitonic_sort": _sort,
    "fft": _fft,
    "histogram": _histogram,
    "reduction": _reduction,
    "scan": _scan,
    "spmv": _spmv,
    "transpose": _transpose,
}
