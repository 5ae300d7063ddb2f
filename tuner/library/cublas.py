"""cuBLAS by ctypes: the honest baseline, on our arrays and stream; TF32 only where the caller admits it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.nvrtc import library_folders

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS asks for on Hopper (its documentation, cublasSetWorkspace); less could keep it from its best kernel."""

_DEFAULT_MATH, _TF32_MATH = 0, 3  # CUBLAS_DEFAULT_MATH: never TF32 for FP32 data; CUBLAS_TF32_TENSOR_OP_MATH
_NO_TRANSPOSE, _TRANSPOSE = 0, 1
_LETTER = {"float32": "S", "float64": "D"}
_Real = ctypes.c_float | ctypes.c_double
_REAL: dict[str, type[_Real]] = {"float32": ctypes.c_float, "float64": ctypes.c_double}


class LibraryError(Exception):
    """cuBLAS refused a call."""


@dataclass(frozen=True)
class LibraryCall:
    """One way in which the library computes a problem: its name, and what enqueues it."""

    name: str
    enqueue: Callable[[], None]


@dataclass(frozen=True)
class Operand:
    """A factor in device memory, column-major with `lead` elements from column to column; `transposed` when used."""

    address: int
    lead: int
    transposed: bool


@dataclass(frozen=True)
class Product:
    """A problem as cuBLAS counts it, by columns: out (rows, columns) = alpha op(first) op(second) + beta out.

    `out` has `rows` elements from column to column; `depth` is what is summed over.
    """

    dtype: str
    rows: int
    columns: int
    depth: int
    first: Operand
    second: Operand
    out: int
    alpha: float
    beta: float
    tf32: bool = False  # the caller's `accuracy` admits inputs cut to TF32

    @property
    def precision(self) -> str:
        """What the library computes it in."""
        return "TF32" if self.tf32 else {"float32": "FP32", "float64": "FP64"}[self.dtype]

    def scalars(self) -> tuple[_Real, _Real]:
        """Alpha and beta in the product's type."""
        real = _REAL[self.dtype]
        return real(self.alpha), real(self.beta)


def product_of(problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> Product:
    """The problem's product on these arrays (device addresses by name); beta 0 makes cuBLAS not read its output."""
    beta = 0.0 if problem.options.get("beta_zero") else scalars.get("beta", 0.0)
    product = _PRODUCTS[problem.kernel](problem, pointers, scalars.get("alpha", 1.0), beta)
    return replace(product, tf32=problem.options.get("accuracy") == "tf32" and problem.dtype == "float32")


def has_call(kernel: str) -> bool:
    """Whether cuBLAS is here and has the product that this kernel computes, or begins with."""
    return kernel in _PRODUCTS and library_folder() is not None


@cache
def library_folder() -> Path | None:
    """Where libcublas lies, or None."""
    return next((folder for folder in library_folders() if any(folder.glob("libcublas.so.*"))), None)


@cache
def load(name: str) -> ctypes.CDLL:
    """The library of that name ("libcublas"); raises LibraryError where it is not beside the others."""
    folder = library_folder()
    paths = sorted(folder.glob(f"{name}.so.*"), key=lambda path: len(path.name)) if folder else []
    if not paths:
        raise LibraryError(f"{name} was not found")
    return ctypes.CDLL(str(paths[0]), mode=ctypes.RTLD_GLOBAL)


def version_text(number: int) -> str:
    """130100 is "13.1.0"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class Cublas:
    """A handle of the current context, on `stream`, with `workspace` (a device address of WORKSPACE_BYTES)."""

    def __init__(self, stream: int, workspace: int) -> None:
        load("libcublasLt")  # cuBLAS opens it by bare name, and a wheel's folder is off the loader's path
        self._library = load("libcublas")
        self._handle = ctypes.c_void_p()
        self.call("cublasCreate_v2", ctypes.byref(self._handle), handle=False)
        self.call("cublasSetStream_v2", ctypes.c_void_p(stream))
        # The stream first: setting it takes the workspace back to cuBLAS's own.
        self.call("cublasSetWorkspace_v2", ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))
        self._set_math(tf32=False)

    @property
    def version(self) -> str:
        """For instance "13.0.2"."""
        value = ctypes.c_int()
        self.call("cublasGetVersion_v2", ctypes.byref(value))
        return version_text(value.value)

    def call(self, name: str, *arguments: object, handle: bool = True) -> None:
        """Calls a function of the library; raises LibraryError with its status."""
        status = getattr(self._library, name)(*((self._handle,) if handle else ()), *arguments)
        if status:
            raise LibraryError(f"{name}: status {status}")

    def calls(self, product: Product) -> list[LibraryCall]:
        """The call for matrices, and the one for a vector where a factor and the result are vectors."""
        self._set_math(tf32=product.tf32)
        calls = [self._named("gemm", product, _gemm_arguments(product), product.precision)]
        vector = _gemv_arguments(product)
        exact = replace(product, tf32=False).precision  # there is no product of a vector in TF32
        return calls if vector is None else [self._named("gemv", product, vector, exact), *calls]

    def close(self) -> None:
        """Frees the handle."""
        if self._handle:
            self.call("cublasDestroy_v2")
            self._handle = ctypes.c_void_p()

    def _set_math(self, *, tf32: bool) -> None:
        """For every later call: a handle serves one problem."""
        self.call("cublasSetMathMode", ctypes.c_int(_TF32_MATH if tf32 else _DEFAULT_MATH))

    def _named(self, word: str, product: Product, arguments: tuple[object, ...], precision: str) -> LibraryCall:
        function = f"cublas{_LETTER[product.dtype]}{word}"
        name = f"cuBLAS {self.version} ({function}, {precision})"
        return LibraryCall(name, lambda: self.call(f"{function}_v2", *arguments))


def _gemm_arguments(p: Product) -> tuple[object, ...]:
    alpha, beta = p.scalars()
    return (
        *(_operation(transposed=factor.transposed) for factor in (p.first, p.second)),
        *(ctypes.c_int(size) for size in (p.rows, p.columns, p.depth)),
        ctypes.byref(alpha),
        *(ctypes.c_void_p(p.first.address), ctypes.c_int(p.first.lead)),
        *(ctypes.c_void_p(p.second.address), ctypes.c_int(p.second.lead)),
        ctypes.byref(beta),
        *(ctypes.c_void_p(p.out), ctypes.c_int(p.rows)),
    )


def _gemv_arguments(p: Product) -> tuple[object, ...] | None:
    """A result of one column is op(first) times a vector; one of one row is the transpose of op(second) times one."""
    if p.columns == 1:
        matrix, vector, transposed, length = p.first, p.second, p.first.transposed, p.rows
        step = vector.lead if vector.transposed else 1
    elif p.rows == 1:
        matrix, vector, transposed, length = p.second, p.first, not p.second.transposed, p.columns
        step = 1 if vector.transposed else vector.lead
    else:
        return None
    stored = (p.depth, length) if transposed else (length, p.depth)
    alpha, beta = p.scalars()
    return (
        _operation(transposed=transposed),
        *(ctypes.c_int(size) for size in stored),
        ctypes.byref(alpha),
        *(ctypes.c_void_p(matrix.address), ctypes.c_int(matrix.lead)),
        *(ctypes.c_void_p(vector.address), ctypes.c_int(step)),
        ctypes.byref(beta),
        *(ctypes.c_void_p(p.out), ctypes.c_int(1)),
    )


def _operation(*, transposed: bool) -> ctypes.c_int:
    return ctypes.c_int(_TRANSPOSE if transposed else _NO_TRANSPOSE)


def _gemm_product(problem: Problem, pointers: Mapping[str, int], alpha: float, beta: float) -> Product:
    """Row-major C = op(A) op(B) is column-major Cᵀ = op(B)ᵀ op(A)ᵀ: the operands change places."""
    m, n, k = (problem.shape[axis] for axis in "mnk")
    trans_a, trans_b = bool(problem.options["trans_a"]), bool(problem.options["trans_b"])
    first = Operand(pointers["B"], k if trans_b else n, trans_b)
    second = Operand(pointers["A"], m if trans_a else k, trans_a)
    return Product(problem.dtype, n, m, k, first, second, pointers["C"], alpha, beta)


def _gemv_product(problem: Problem, pointers: Mapping[str, int], alpha: float, beta: float) -> Product:
    """Row-major A is column-major Aᵀ, so A x is that matrix transposed times x, a matrix of one column."""
    rows, depth = problem.shape["m"], problem.shape["n"]
    transposed = bool(problem.options.get("trans_a"))  # A is stored as (n, m)
    first = Operand(pointers["A"], rows if transposed else depth, not transposed)
    second = Operand(pointers["x"], depth, transposed=False)
    return Product(problem.dtype, rows, 1, depth, first, second, pointers["y"], alpha, beta)


def _linear_product(problem: Problem, pointers: Mapping[str, int], alpha: float, beta: float) -> Product:
    """X Wᵀ of row-major matrices is, by columns, W times Xᵀ with W stored transposed."""
    m, n, k = (problem.shape[axis] for axis in "mnk")
    first, second = Operand(pointers["W"], k, transposed=True), Operand(pointers["X"], k, transposed=False)
    return Product(problem.dtype, n, m, k, first, second, pointers["Y"], alpha, beta)


_PRODUCTS: dict[str, Callable[[Problem, Mapping[str, int], float, float], Product]] = {
    "gemm": _gemm_product,
    "gemv": _gemv_product,
    "linear": _linear_product,
}
