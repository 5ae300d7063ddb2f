"""Problems as cuBLAS and cublasLt count them: products of matrices, by columns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.kernels.dtypes import sum_dtype
from tilewright.kernels.problem import Problem

_PRECISION = {"float32": "FP32", "float64": "FP64", "bfloat16": "BF16", "float16": "FP16"}
Real = ctypes.c_float | ctypes.c_double
_REAL: dict[str, type[Real]] = {"float32": ctypes.c_float, "float64": ctypes.c_double}


@dataclass(frozen=True)
class Operand:
    """A factor in device memory, column-major with `lead` elements from column to column; `transposed` when used.

    In a batch `stride` elements are between one matrix and the next; 0 where all products share it.
    """

    address: int
    lead: int
    transposed: bool
    stride: int = 0


@dataclass(frozen=True)
class Product:
    """A problem as cuBLAS counts it, by columns: out (rows, columns) = alpha op(first) op(second) + beta out.

    `out` is stored as it is used; `depth` is what is summed over. `batch` of them are computed by one call.
    """

    dtype: str
    rows: int
    columns: int
    depth: int
    first: Operand
    second: Operand
    out: Operand
    alpha: float
    beta: float
    batch: int = 1
    tf32: bool = False  # the caller's `accuracy` admits inputs cut to TF32
    is_out_wide: bool = False  # out is in `sum_dtype`, whatever the factors are in
    bias: int = 0  # address of a number for each row, which the same call adds; 0 for none
    relu: bool = False  # after the bias

    @property
    def precision(self) -> str:
        """The precision in which the library computes; sums of half types are in FP32."""
        return "TF32" if self.tf32 else _PRECISION[self.dtype]

    @property
    def sum_dtype(self) -> str:
        """The type of sums, alpha and beta."""
        return sum_dtype(self.dtype)

    @property
    def out_dtype(self) -> str:
        """The type that the result is stored in."""
        return self.sum_dtype if self.is_out_wide else self.dtype

    def scalars(self) -> tuple[Real, Real]:
        """Alpha and beta in the type of sums."""
        real = _REAL[self.sum_dtype]
        return real(self.alpha), real(self.beta)


def product_of(problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> Product:
    """The problem's product on these arrays (device addresses by name); beta 0 makes cuBLAS not read its output."""
    beta = 0.0 if problem.options.get("beta_zero") else scalars.get("beta", 0.0)
    product = PRODUCTS[problem.kernel](problem, pointers, scalars.get("alpha", 1.0), beta)
    is_tf32 = problem.options.get("accuracy") == "tf32" and problem.dtype == "float32"
    return replace(product, tf32=is_tf32, is_out_wide=problem.options.get("output") == "float32")


def fused_product(problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> Product | None:
    """All that the kernel computes as one product; None where the library cannot fuse its end, or not exactly.

    Its gelu is an approximation.
    """
    product = product_of(problem, pointers, scalars)
    activation = problem.options.get("activation", "none")
    if "b" not in pointers:
        return product
    return replace(product, bias=pointers["b"], relu=activation == "relu") if activation in {"none", "relu"} else None


def _gemm_product(problem: Problem, pointers: Mapping[str, int], alpha: float, beta: float) -> Product:
    """Row-major C = op(A) op(B) is column-major Cᵀ = op(B)ᵀ op(A)ᵀ: the operands change places."""
    shape, options = problem.shape, problem.options
    first = Operand(pointers["B"], shape["ldb"], bool(options["trans_b"]), shape["stride_b"])
    second = Operand(pointers["A"], shape["lda"], bool(options["trans_a"]), shape["stride_a"])
    out = Operand(pointers["C"], shape["ldc"], transposed=False, stride=shape["stride_c"])
    sizes = shape["n"], shape["m"], shape["k"]
    return Product(problem.dtype, *sizes, first, second, out, alpha, beta, shape["batch"])


def _gemv_product(problem: Problem, pointers: Mapping[str, int], alpha: float, beta: float) -> Product:
    """Row-major A is column-major Aᵀ, so A x is that matrix transposed times x, a matrix of one column."""
    rows, depth = problem.shape["m"], problem.shape["n"]
    transposed = bool(problem.options.get("trans_a"))  # A is stored as (n, m)
    first = Operand(pointers["A"], rows if transposed else depth, not transposed)
    second = Operand(pointers["x"], depth, transposed=False)
    out = Operand(pointers["y"], rows, transposed=False)
    return Product(problem.dtype, rows, 1, depth, first, second, out, alpha, beta)


def _layer_product(problem: Problem, pointers: Mapping[str, int], alpha: float, beta: float) -> Product:
    """X Wᵀ of row-major matrices is, by columns, W times Xᵀ with W stored transposed."""
    m, n, k = (problem.shape[axis] for axis in "mnk")
    first, second = Operand(pointers["W"], k, transposed=True), Operand(pointers["X"], k, transposed=False)
    return Product(problem.dtype, n, m, k, first, second, Operand(pointers["Y"], n, transposed=False), alpha, beta)


PRODUCTS: dict[str, Callable[[Problem, Mapping[str, int], float, float], Product]] = {
    "gemm": _gemm_product,
    "gemv": _gemv_product,
    "linear": _layer_product,
    "linear_quantized": _layer_product,
}
