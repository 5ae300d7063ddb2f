"""cuBLASLt by ctypes: its own first choices among its kernels for one product.

Types and enumerators are those of cublasLt.h (13.0) and library_types.h; descriptors are made by the library, so that
their sizes are its business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tilewright.tuner.library.cublas import (
    COMPUTE_TYPE,
    DATA_TYPE,
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

_DESC_TRANSA, _DESC_TRANSB = 3, 4  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
_DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_BIAS_DATA_TYPE = 7, 8, 26  # CUBLASLT_MATMUL_DESC_…
_EPILOGUE_BIAS, _EPILOGUE_RELU_BIAS = 4, 6  # CUBLASLT_EPILOGUE_…
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6  # CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, _STRIDED_BATCH_OFFSET
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK = 1, 3  # CUBLASLT_MATMUL_PREF_…
_REDUCTION_IN_COMPUTE_TYPE = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums of half types stay in FP32

_Integer = ctypes.c_int32 | ctypes.c_uint32 | ctypes.c_int64 | ctypes.c_uint64


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
            choices = self._choices(product, descriptor, layouts)
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

    def _choices(
        self, product: Product, descriptor: ctypes.c_void_p, layouts: list[ctypes.c_void_p]
    ) -> list[_Heuristic]:
        preference = self._make("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_MAX_WORKSPACE_BYTES, limit)
        if product.dtype != product.sum_dtype:
            scheme = ctypes.c_uint32(_REDUCTION_IN_COMPUTE_TYPE)
            self._set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_REDUCTION_SCHEME_MASK, scheme)
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
        address = ctypes.c_void_p(product.out.address)
        arguments = (
            *(self._handle, descriptor, ctypes.byref(alpha)),
            *(ctypes.c_void_p(product.first.address), first, ctypes.c_void_p(product.second.address), second),
            *(ctypes.byref(beta), address, out, address, out),
            *(ctypes.byref(choice.algorithm), self._workspace, ctypes.c_size_t(WORKSPACE_BYTES), self._stream),
        )
        return lambda: self._call("cublasLtMatmul", *arguments)

    def _descriptor(self, product: Product) -> ctypes.c_void_p:
        kinds = (ctypes.c_int(COMPUTE_TYPE[product.precision]), ctypes.c_int(DATA_TYPE[product.sum_dtype]))
        descriptor = self._make("cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", *kinds)
        for attribute, factor in ((_DESC_TRANSA, product.first), (_DESC_TRANSB, product.second)):
            self._set("cublasLtMatmulDescSetAttribute", descriptor, attribute, ctypes.c_int32(factor.transposed))
        if product.bias:
            epilogue = ctypes.c_uint32(_EPILOGUE_RELU_BIAS if product.relu else _EPILOGUE_BIAS)
            for attribute, value in (
                (_DESC_EPILOGUE, epilogue),
                (_DESC_BIAS_POINTER, ctypes.c_uint64(product.bias)),
                (_DESC_BIAS_DATA_TYPE, ctypes.c_int32(DATA_TYPE[product.dtype])),
            ):
                self._set("cublasLtMatmulDescSetAttribute", descriptor, attribute, value)
        return descriptor

    def _layouts(self, product: Product) -> list[ctypes.c_void_p]:
        """The layouts of the first factor, the second and the result, as they are stored."""
        sizes = (
            (product.first, product.dtype, product.rows, product.depth),
            (product.second, product.dtype, product.depth, product.columns),
            (product.out, product.out_dtype, product.rows, product.columns),
        )
        return [self._layout(product, *each) for each in sizes]

    def _layout(self, product: Product, factor: Operand, dtype: str, rows: int, columns: int) -> ctypes.c_void_p:
        stored = (columns, rows) if factor.transposed else (rows, columns)
        layout = self._make(
            "cublasLtMatrixLayoutCreate",
            "cublasLtMatrixLayoutDestroy",
            ctypes.c_int(DATA_TYPE[dtype]),
            *(ctypes.c_uint64(size) for size in stored),
            ctypes.c_int64(factor.lead),
        )
        if product.batch > 1:
            for attribute, value in (
                (_LAYOUT_BATCH_COUNT, ctypes.c_int32(product.batch)),
                (_LAYOUT_BATCH_STRIDE, ctypes.c_int64(factor.stride)),
            ):
                self._set("cublasLtMatrixLayoutSetAttribute", layout, attribute, value)
        return layout

    def _set(self, function: str, target: ctypes.c_void_p, attribute: int, value: _Integer) -> None:
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
