"""cuBLAS by ctypes: the honest baseline, in full FP32 or FP64 (no TF32), on our arrays and stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache

from tilewright.kernels.problem import Problem
from tilewright.tuner.nvrtc import library_folders

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS asks for on Hopper (its documentation, cublasSetWorkspace); less could keep it from its best kernel."""

_DEFAULT_MATH = 0  # CUBLAS_DEFAULT_MATH: never TF32 for FP32 data
_NO_TRANSPOSE, _TRANSPOSE = 0, 1
_LETTER = {"float32": "S", "float64": "D"}
_Real = ctypes.c_float | ctypes.c_double
_REAL: dict[str, type[_Real]] = {"float32": ctypes.c_float, "float64": ctypes.c_double}


class LibraryError(Exception):
    """cuBLAS refused a call."""


@cache
def _library() -> ctypes.CDLL | None:
    for folder in library_folders():
        for path in sorted(folder.glob("libcublas.so.*"), key=lambda p: len(p.name)):
            for lt in folder.glob("libcublasLt.so.*"):  # opened by bare name, off the loader's path in a wheel
                ctypes.CDLL(str(lt), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    return None


def has_call(kernel: str) -> bool:
    """Whether cuBLAS is here and computes what this kernel does."""
    return kernel in _CALLS and _library() is not None


class Cublas:
    """A handle of the current context, on `stream`, with `workspace` (a device address of WORKSPACE_BYTES)."""

    def __init__(self, stream: int, workspace: int) -> None:
        library = _library()
        if library is None:
            raise LibraryError("libcublas was not found")
        self._library = library
        self._handle = ctypes.c_void_p()
        self.call("cublasCreate_v2", ctypes.byref(self._handle), handle=False)
        self.call("cublasSetStream_v2", ctypes.c_void_p(stream))
        # The stream first: setting it takes the workspace back to cuBLAS's own.
        self.call("cublasSetWorkspace_v2", ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))
        self.call("cublasSetMathMode", ctypes.c_int(_DEFAULT_MATH))

    @property
    def version(self) -> str:
        """For instance "13.0.2"."""
        value = ctypes.c_int()
        self.call("cublasGetVersion_v2", ctypes.byref(value))
        number = value.value
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def call(self, name: str, *arguments: object, handle: bool = True) -> None:
        """Calls a function of the library; raises LibraryError with its status."""
        status = getattr(self._library, name)(*((self._handle,) if handle else ()), *arguments)
        if status:
            raise LibraryError(f"{name}: status {status}")

    def name_for(self, problem: Problem) -> str:
        """For instance "cuBLAS 13.0.2 (cublasSgemm, FP32)"."""
        function = f"cublas{_LETTER[problem.dtype]}{problem.kernel}"
        return f"cuBLAS {self.version} ({function}, {'FP32' if problem.dtype == 'float32' else 'FP64'})"

    def launcher(
        self, problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]
    ) -> Callable[[], None]:
        """A function that enqueues the library's call for this problem on these arrays (device addresses by name)."""
        return _CALLS[problem.kernel](self, problem, pointers, scalars)

    def close(self) -> None:
        """Frees the handle."""
        if self._handle:
            self.call("cublasDestroy_v2")
            self._handle = ctypes.c_void_p()


def _gemm(
    blas: Cublas, problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]
) -> Callable[[], None]:
    """By columns, as cuBLAS counts: row-major C = op(A) op(B) is column-major Cᵀ = op(B)ᵀ op(A)ᵀ, operands swapped."""
    m, n, k = (problem.shape[axis] for axis in "mnk")
    trans_a, trans_b = bool(problem.options["trans_a"]), bool(problem.options["trans_b"])
    alpha, beta = _scalars(problem, scalars)
    arguments = (
        ctypes.c_int(_TRANSPOSE if trans_b else _NO_TRANSPOSE),
        ctypes.c_int(_TRANSPOSE if trans_a else _NO_TRANSPOSE),
        *(ctypes.c_int(size) for size in (n, m, k)),
        ctypes.byref(alpha),
        *(ctypes.c_void_p(pointers["B"]), ctypes.c_int(k if trans_b else n)),
        *(ctypes.c_void_p(pointers["A"]), ctypes.c_int(m if trans_a else k)),
        ctypes.byref(beta),
        *(ctypes.c_void_p(pointers["C"]), ctypes.c_int(n)),
    )
    return lambda: blas.call(f"cublas{_LETTER[problem.dtype]}gemm_v2", *arguments)


def _gemv(
    blas: Cublas, problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Row-major A (m, n) is column-major Aᵀ (n, m), so A x is that matrix transposed times x."""
    m, n = problem.shape["m"], problem.shape["n"]
    alpha, beta = _scalars(problem, scalars)
    arguments = (
        ctypes.c_int(_TRANSPOSE),
        *(ctypes.c_int(n), ctypes.c_int(m)),
        ctypes.byref(alpha),
        *(ctypes.c_void_p(pointers["A"]), ctypes.c_int(n)),
        *(ctypes.c_void_p(pointers["x"]), ctypes.c_int(1)),
        ctypes.byref(beta),
        *(ctypes.c_void_p(pointers["y"]), ctypes.c_int(1)),
    )
    return lambda: blas.call(f"cublas{_LETTER[problem.dtype]}gemv_v2", *arguments)


def _scalars(problem: Problem, scalars: Mapping[str, float]) -> tuple[_Real, _Real]:
    """The problem's alpha and beta in its type; beta 0 makes cuBLAS write its output without reading it."""
    real = _REAL[problem.dtype]
    return real(scalars["alpha"]), real(0.0 if problem.options.get("beta_zero") else scalars["beta"])


_Call = Callable[[Cublas, Problem, Mapping[str, int], Mapping[str, float]], Callable[[], None]]
_CALLS: dict[str, _Call] = {"gemm": _gemm, "gemv": _gemv}
