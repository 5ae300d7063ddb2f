"""cuBLASLt by ctypes: its own first choices among its kernels for one product.

Types and enumerators are those of cublasLt.h (13.0) and library_types.h; descriptors are made by the library, so that
their sizes are its business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tilewright.tuner.library.cublas import (
    WORKSPACE_BYTES,
    LibraryCall,
    LibraryError,
    Operand,
    Product,
    load,
    version_text,
)

HEURISTICS = 8
"""How many of the library's choices are timed; the first is what a plain call would take."""

_COMPUTE = {"FP32": 68, "TF32": 77, "FP64": 70}  # CUBLAS_COMPUTE_32F (never TF32), _32F_FAST_TF32, _64F
_DATA = {"float32": 0, "float64": 1}  # CUDA_R_32F, CUDA_R_64F
_DESC_TRANSA, _DESC_TRANSB = 3, 4  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
_PREF_MAX_WORKSPACE_BYTES = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, copied by value."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class CublasLt:
    """A handle of the current context; its calls go to `stream` with `workspace` (WORKSPACE_BYTES on the device)."""

    def __init__(self, stream: int, workspace: int) -> None:
        self._library = load("libcublasLt")
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self._stream, self._workspace = ctypes.c_void_p(stream), ctypes.c_void_p(workspace)
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._handle = self._make("cublasLtCreate", "cublasLtDestroy")

    @property
    def version(self) -> str:
        """For instance "13.1.0"."""
        return version_text(self._library.cublasLtGetVersion())

    def calls(self, product: Product) -> list[LibraryCall]:
        """A call for each of the library's first choices; none where it has none for this product."""
        descriptor = self._descriptor(product)
        layouts = self._layouts(product)
        try:
            choices = self._choices(descriptor, layouts)
        except LibraryError:  # no kernel of this library's does it
            return []
        return [
            LibraryCall(
                f"cuBLASLt {self.version} (heuristic {place} of {len(choices)}, {product.precision})",
                self._enqueue(product, descriptor, layouts, choice),
            )
            for place, choice in enumerate(choices, 1)
        ]

    def close(self) -> None:
        """Frees descriptors and handle; the calls must not be made any more."""
        while self._made:
            destroy, thing = self._made.pop()
            self._call(destroy, thing)

    def _choices(self, descriptor: ctypes.c_void_p, layouts: list[ctypes.c_void_p]) -> list[_Heuristic]:
        preference = self._make("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_MAX_WORKSPACE_BYTES, limit)
        count, results = ctypes.c_int(), (_Heuristic * HEURISTICS)()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, descriptor, *layouts, layouts[-1], preference),
            *(ctypes.c_int(HEURISTICS), results, ctypes.byref(count)),
        )
        return [result for result in results[: count.value] if result.state == 0]

    def _enqueue(
        self, product: Product, descriptor: ctypes.c_void_p, layouts: list[ctypes.c_void_p], choice: _Heuristic
    ) -> Callable[[], None]:
        alpha, beta = product.scalars()
        first, second, out = layouts
        address = ctypes.c_void_p(product.out)
        arguments = (
            *(self._handle, descriptor, ctypes.byref(alpha)),
            *(ctypes.c_void_p(product.first.address), first, ctypes.c_void_p(product.second.address), second),
            *(ctypes.byref(beta), address, out, address, out),
            *(ctypes.byref(choice.algorithm), self._workspace, ctypes.c_size_t(WORKSPACE_BYTES), self._stream),
        )
        return lambda: self._call("cublasLtMatmul", *arguments)

    def _descriptor(self, product: Product) -> ctypes.c_void_p:
        kinds = (ctypes.c_int(_COMPUTE[product.precision]), ctypes.c_int(_DATA[product.dtype]))
        descriptor = self._make("cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", *kinds)
        for attribute, factor in ((_DESC_TRANSA, product.first), (_DESC_TRANSB, product.second)):
            self._set("cublasLtMatmulDescSetAttribute", descriptor, attribute, ctypes.c_int32(factor.transposed))
        return descriptor

    def _layouts(self, product: Product) -> list[ctypes.c_void_p]:
        """Of the first factor, the second and the result, as they are stored."""
        out = Operand(product.out, product.rows, transposed=False)
        sizes = (
            (product.first, product.rows, product.depth),
            (product.second, product.depth, product.columns),
            (out, product.rows, product.columns),
        )
        return [self._layout(product.dtype, *each) for each in sizes]

    def _layout(self, dtype: str, factor: Operand, rows: int, columns: int) -> ctypes.c_void_p:
        stored = (columns, rows) if factor.transposed else (rows, columns)
        return self._make(
            "cublasLtMatrixLayoutCreate",
            "cublasLtMatrixLayoutDestroy",
            ctypes.c_int(_DATA[dtype]),
            *(ctypes.c_uint64(size) for size in stored),
            ctypes.c_int64(factor.lead),
        )

    def _set(
        self, function: str, target: ctypes.c_void_p, attribute: int, value: ctypes.c_int32 | ctypes.c_uint64
    ) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(function, target, ctypes.c_int(attribute), ctypes.byref(value), size)

    def _make(self, create: str, destroy: str, *arguments: object) -> ctypes.c_void_p:
        thing = ctypes.c_void_p()
        self._call(create, ctypes.byref(thing), *arguments)
        self._made.append((destroy, thing))
        return thing

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise LibraryError(f"{name}: status {status}")
