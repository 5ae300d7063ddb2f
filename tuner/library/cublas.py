"""cuBLAS by ctypes: the honest baseline, on our arrays and stream; TF32 only where the caller admits it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from tilewright.kernels.dtypes import HALF
from tilewright.tuner.compile.nvrtc import library_folders
from tilewright.tuner.library.names import CUBLAS, is_launched
from tilewright.tuner.library.product import PRODUCTS, Operand, Product, Real

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS asks for on Hopper (its documentation, cublasSetWorkspace); less could keep it from its best kernel."""

# CUBLAS_DEFAULT_MATH: never TF32 for FP32 data; CUBLAS_TF32_TENSOR_OP_MATH;
# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: partial sums of half types stay in FP32.
_DEFAULT_MATH, _TF32_MATH, _WHOLE_SUMS_MATH = 0, 3, 16
_NO_TRANSPOSE, _TRANSPOSE = 0, 1
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_LETTER = {"float32": "S", "float64": "D"}
COMPUTE_TYPE = {"FP32": 68, "BF16": 68, "FP16": 68, "TF32": 77, "FP64": 70}
"""CUBLAS_COMPUTE_32F (never TF32), _32F_FAST_TF32, _64F, by `Product.precision`."""
DATA_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""CUDA_R_32F, _64F, _16F, _16BF."""


class LibraryError(Exception):
    """cuBLAS refused a call."""


@dataclass(frozen=True)
class LibraryCall:
    """One way in which the library computes a problem: its name, and what enqueues it.

    `is_comparable`: its result is what the kernel's should be. Else it is what one would do instead, and is timed only.
    `is_named`: the name is enough to make the call in another process (`runtime/launches/library_calls.py`).
    """

    name: str
    enqueue: Callable[[], None]
    is_comparable: bool = True
    is_named: bool = False


class Routine(NamedTuple):
    """A function of cuBLAS, its arguments behind the handle, and alpha and beta among them."""

    name: str
    function: str
    arguments: tuple[object, ...]
    scalars: tuple[Real, Real]
    workspace_bytes: int = WORKSPACE_BYTES


class Arguments:
    """The arguments of a routine, filled in again and again, as in `cublaslt.Matmul`; operands and result are apart."""

    def __init__(self, routine: Routine, product: Product) -> None:
        self.routine, self.arguments = routine, (self,)
        self.alpha, self.beta = routine.scalars
        self.workspace, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        pointers = [one for one in routine.arguments if isinstance(one, ctypes.c_void_p)]
        operands = (product.first, product.second, product.out)
        self._cells = [next(cell for cell in pointers if cell.value == one.address) for one in operands]

    def move(self, first: int, second: int, out: int, _bias: int) -> None:
        """Fills in the addresses."""
        for cell, address in zip(self._cells, (first, second, out), strict=True):
            cell.value = address


def has_call(kernel: str) -> bool:
    """Whether cuBLAS is here and has the product that this kernel computes, or begins with."""
    return kernel in PRODUCTS and library_folder() is not None


@cache
def library_folder(name: str = "libcublas") -> Path | None:
    """The folder in which the library of that name lies, or None."""
    return next((folder for folder in library_folders() if any(folder.glob(f"{name}.so.*"))), None)


@cache
def load(name: str) -> ctypes.CDLL:
    """The library of that name ("libcublas"); raises LibraryError where it is not among NVIDIA's."""
    folder = library_folder(name)
    paths = sorted(folder.glob(f"{name}.so.*"), key=lambda path: len(path.name)) if folder else []
    if not paths:
        raise LibraryError(f"{name} was not found")
    return ctypes.CDLL(str(paths[0]), mode=ctypes.RTLD_GLOBAL)


def version_text(number: int) -> str:
    """The version that a number stands for: "13.1.0" for 130100."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@cache
def version() -> str:
    """The installed cuBLAS's version, such as "13.1.0"; raises LibraryError if it is not installed."""
    load("libcublasLt")  # cuBLAS opens it by bare name, and a wheel's folder is off the loader's path
    library, numbers = load("libcublas"), []
    for part in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of library_types.h
        value = ctypes.c_int()
        library.cublasGetProperty(ctypes.c_int(part), ctypes.byref(value))
        numbers.append(value.value)
    return ".".join(map(str, numbers))


def why_not_here(name: str) -> str:
    """Why the call of that name (`Cublas.routines`) cannot be made in this process; empty where it can."""
    try:
        here = version()
    except LibraryError as error:
        return str(error)
    if not is_launched(name):
        return "it was not verified, or another kernel follows it"
    return "" if name.startswith(f"{CUBLAS}{here} ") else f"cuBLAS {here} is installed"


class Cublas:
    """A handle of the current context, on `stream`, with `workspace` (a device address of WORKSPACE_BYTES)."""

    def __init__(self, stream: int = 0, workspace: int = 0) -> None:
        load("libcublasLt")  # see `version`
        self._library = load("libcublas")
        self._handle = ctypes.c_void_p()
        self.call("cublasCreate_v2", ctypes.byref(self._handle), handle=False)
        if workspace:
            self.move(stream, workspace)
        self._set_math(_DEFAULT_MATH)

    def move(self, stream: int, workspace: int) -> None:
        """Later calls go to that stream, with that workspace."""
        self.call("cublasSetStream_v2", ctypes.c_void_p(stream))
        # The stream first: setting it takes the workspace back to cuBLAS's own.
        self.call("cublasSetWorkspace_v2", ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES))

    def call(self, name: str, *arguments: object, handle: bool = True) -> None:
        """Calls a function of the library; raises LibraryError with its status."""
        status = getattr(self._library, name)(*((self._handle,) if handle else ()), *arguments)
        if status:
            raise LibraryError(f"{name}: status {status}")

    def status(self, routine: Routine) -> int:
        """The status that cuBLAS returns when the routine is called."""
        status: int = getattr(self._library, routine.function)(self._handle, *routine.arguments)
        return status

    def calls(self, product: Product) -> list[LibraryCall]:
        """A call of each routine."""
        return [
            LibraryCall(one.name, partial(self.call, one.function, *one.arguments), is_named=True)
            for one in self.routines(product)
        ]

    def routines(self, product: Product) -> list[Routine]:
        """The routine for matrices, and for one dtype the one for a vector if a factor and the result are vectors.

        None where a bias goes with it: cuBLAS has no such call. Later calls of the handle are in the product's
        precision. A name holds the version, which chooses the kernel, so that it means the same in another process.
        """
        if product.bias:
            return []
        if product.dtype in HALF:
            self._set_math(_WHOLE_SUMS_MATH)
            return [self._by_types(product)]
        self._set_math(_TF32_MATH if product.tf32 else _DEFAULT_MATH)
        routines = [self._of_matrices(product)]
        scalars = product.scalars()
        vector = _gemv_arguments(product, scalars)
        exact = replace(product, tf32=False).precision  # there is no product of a vector in TF32
        return routines if vector is None else [self._named("gemv", product, vector, exact, scalars), *routines]

    def close(self) -> None:
        """Frees the handle."""
        if self._handle:
            self.call("cublasDestroy_v2")
            self._handle = ctypes.c_void_p()

    def _set_math(self, mode: int) -> None:
        """Sets the mode of every later call: a handle serves one problem."""
        self.call("cublasSetMathMode", ctypes.c_int(mode))

    @classmethod
    def _of_matrices(cls, product: Product) -> Routine:
        if product.batch == 1:
            scalars = product.scalars()
            return cls._named("gemm", product, _gemm_arguments(product, scalars), product.precision, scalars)
        return cls._by_types(product)

    @staticmethod
    def _by_types(product: Product) -> Routine:
        """The routine that takes each operand's type as an argument."""
        function, scalars = "cublasGemmEx" if product.batch == 1 else "cublasGemmStridedBatchedEx", product.scalars()
        name = f"{CUBLAS}{version()} ({function}, {product.precision})"
        return Routine(name, function, _typed_arguments(product, scalars), scalars)

    @staticmethod
    def _named(
        word: str, product: Product, arguments: tuple[object, ...], precision: str, scalars: tuple[Real, Real]
    ) -> Routine:
        batched = product.batch > 1
        function = f"cublas{_LETTER[product.dtype]}{word}{'StridedBatched' if batched else ''}"
        name = f"{CUBLAS}{version()} ({function}, {precision})"
        return Routine(name, function if batched else f"{function}_v2", arguments, scalars)


def _typed_arguments(p: Product, scalars: tuple[Real, Real]) -> tuple[object, ...]:
    alpha, beta = scalars
    is_batched = p.batch > 1

    def matrix(operand: Operand, dtype: str) -> tuple[object, ...]:
        strides = (ctypes.c_longlong(operand.stride),) if is_batched else ()
        return ctypes.c_void_p(operand.address), ctypes.c_int(DATA_TYPE[dtype]), ctypes.c_int(operand.lead), *strides

    return (
        *(_operation(transposed=factor.transposed) for factor in (p.first, p.second)),
        *(ctypes.c_int(size) for size in (p.rows, p.columns, p.depth)),
        *(ctypes.byref(alpha), *matrix(p.first, p.dtype), *matrix(p.second, p.dtype)),
        *(ctypes.byref(beta), *matrix(p.out, p.out_dtype)),
        *((ctypes.c_int(p.batch),) if is_batched else ()),
        *(ctypes.c_int(number) for number in (COMPUTE_TYPE[p.precision], _DEFAULT_ALGORITHM)),
    )


def _gemm_arguments(p: Product, scalars: tuple[Real, Real]) -> tuple[object, ...]:
    alpha, beta = scalars
    return (
        *(_operation(transposed=factor.transposed) for factor in (p.first, p.second)),
        *(ctypes.c_int(size) for size in (p.rows, p.columns, p.depth)),
        ctypes.byref(alpha),
        *(ctypes.c_void_p(p.first.address), ctypes.c_int(p.first.lead)),
        *(ctypes.c_void_p(p.second.address), ctypes.c_int(p.second.lead)),
        ctypes.byref(beta),
        *(ctypes.c_void_p(p.out.address), ctypes.c_int(p.out.lead)),
    )


def _gemv_arguments(p: Product, scalars: tuple[Real, Real]) -> tuple[object, ...] | None:
    """Arguments of op(first) times a vector for one column; for one row, of op(second) transposed times one."""
    if p.columns == 1:
        matrix, vector, transposed, length = p.first, p.second, p.first.transposed, p.rows
        step, out_step = (vector.lead if vector.transposed else 1), 1
    elif p.rows == 1:
        matrix, vector, transposed, length = p.second, p.first, not p.second.transposed, p.columns
        step, out_step = (1 if vector.transposed else vector.lead), p.out.lead
    else:
        return None
    stored = (p.depth, length) if transposed else (length, p.depth)
    alpha, beta = scalars

    def array(operand: Operand, step: int) -> tuple[object, ...]:
        strides = (ctypes.c_longlong(operand.stride),) if p.batch > 1 else ()
        return ctypes.c_void_p(operand.address), ctypes.c_int(step), *strides

    return (
        _operation(transposed=transposed),
        *(ctypes.c_int(size) for size in stored),
        *(ctypes.byref(alpha), *array(matrix, matrix.lead), *array(vector, step)),
        *(ctypes.byref(beta), *array(p.out, out_step)),
        *((ctypes.c_int(p.batch),) if p.batch > 1 else ()),
    )


def _operation(*, transposed: bool) -> ctypes.c_int:
    return ctypes.c_int(_TRANSPOSE if transposed else _NO_TRANSPOSE)
