"""cuBLASLt by ctypes: the algorithms that its heuristic has for one product, each with a name that finds it again.

Types and enumerators are those of cublasLt.h (13.0) and library_types.h; descriptors are made by the library, so that
their sizes are its business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial

from tilewright.tuner.library.cublas import (
    COMPUTE_TYPE,
    DATA_TYPE,
    WORKSPACE_BYTES,
    LibraryCall,
    LibraryError,
    load,
    version_text,
)
from tilewright.tuner.library.names import ALGORITHM, CUBLASLT, OWN_CHOICE, is_launched, says_which
from tilewright.tuner.library.product import Operand, Product

ALGORITHMS = 32
"""How many of the library's choices are timed; the first is what a plain call would take."""

_ALIKE = "number"

ALIGNMENT = 16
"""Bytes that the launcher's arrays start at a multiple of: what needs more is no contender."""

_DESC_TRANSA, _DESC_TRANSB = 3, 4  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
_DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_BIAS_DATA_TYPE = 7, 8, 26  # CUBLASLT_MATMUL_DESC_…
_EPILOGUE_BIAS, _EPILOGUE_RELU_BIAS = 4, 6  # CUBLASLT_EPILOGUE_…
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6  # CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, _STRIDED_BATCH_OFFSET
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK = 1, 3  # CUBLASLT_MATMUL_PREF_…
_PREF_MIN_ALIGNMENTS = (5, 6, 7, 8)  # CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES to _D_BYTES
_REDUCTION_IN_COMPUTE_TYPE = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums of half types stay in FP32

_WORDS = {
    ALGORITHM: (0, ctypes.c_uint32),
    "tile": (1, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "split-k": (2, ctypes.c_uint32),
    "reduction": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}
"""CUBLASLT_ALGO_CONFIG_… with the type of each: what tells algorithms from each other."""

_Integer = ctypes.c_int32 | ctypes.c_uint32 | ctypes.c_int64 | ctypes.c_uint64


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, copied by value."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


@cache
def version() -> str:
    """The installed cuBLASLt's version, such as "13.1.0"; raises LibraryError if it is not installed."""
    library = load("libcublasLt")
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return version_text(library.cublasLtGetVersion())


def why_not_here(name: str) -> str:
    """Why the call of that name (`CublasLt.algorithms`) cannot be made in this process; empty where it can."""
    try:
        here = version()
    except LibraryError as error:
        return str(error)
    if not says_which(name):
        return "its name does not say the algorithm; tune it again"
    if not is_launched(name):
        return "it was not verified, or another kernel follows it"
    return "" if name.startswith(f"{CUBLASLT}{here} ") else f"cuBLASLt {here} is installed"


class Heuristic(ctypes.Structure):
    """The structure cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Matmul:
    """The arguments of cublasLtMatmul for one product by one algorithm, made once and filled in again and again."""

    def __init__(
        self,
        handle: ctypes.c_void_p,
        descriptor: ctypes.c_void_p,
        layouts: Sequence[ctypes.c_void_p],
        product: Product,
        choice: Heuristic,
        set_bias: Callable[[ctypes.c_uint64], None] | None,
    ) -> None:
        self.alpha, self.beta = product.scalars()
        self._first, self._second, self._out = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.workspace, self.stream, self._set_bias = ctypes.c_void_p(), ctypes.c_void_p(), set_bias
        first, second, out = layouts
        self.arguments = (
            *(handle, descriptor, ctypes.byref(self.alpha), self._first, first, self._second, second),
            *(ctypes.byref(self.beta), self._out, out, self._out, out, ctypes.byref(choice.algorithm)),
            *(self.workspace, ctypes.c_size_t(choice.workspace_bytes), self.stream),
        )

    def move(self, first: int, second: int, out: int, bias: int) -> None:
        """Fills in the addresses of the factors, the result, and the bias where there is one."""
        self._first.value, self._second.value, self._out.value = first, second, out
        if self._set_bias is not None:
            self._set_bias(ctypes.c_uint64(bias))


class CublasLt:
    """A handle of the current context; its calls go to `stream` with `workspace` (WORKSPACE_BYTES on the device)."""

    def __init__(self, stream: int = 0, workspace: int = 0) -> None:
        self._library = load("libcublasLt")
        self.enqueue = self._library.cublasLtMatmul
        self._stream, self._workspace = stream, workspace
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._handle = self._make("cublasLtCreate", "cublasLtDestroy")

    def algorithms(self, product: Product) -> dict[str, Heuristic]:
        """Algorithms by name, in the heuristic's order; empty where the library has none for this product.

        A name holds the version and the algorithm's own words, so that it means the same in another process.
        """
        try:
            choices = self._choices(product)
        except LibraryError:  # no kernel of this library's does it
            return {}
        words = [self._words(choice.algorithm) for choice in choices]
        alike = [words[:place].count(one) for place, one in enumerate(words)]
        told = [f"{one}, {_ALIKE} {count + 1}" if count else one for one, count in zip(words, alike, strict=True)]
        names = [f"{CUBLASLT}{version()} ({one}, {product.precision})" for one in told]
        return dict(zip(names, choices, strict=True))

    def algorithm(self, product: Product, name: str) -> Heuristic | None:
        """The algorithm of that name, or the heuristic's first; None where the heuristic does not return it here."""
        found = self.algorithms(product)
        return next(iter(found.values()), None) if OWN_CHOICE in name else found.get(name)

    def calls(self, product: Product) -> list[LibraryCall]:
        """A call for each algorithm."""
        calls = []
        for name, choice in self.algorithms(product).items():
            matmul = self.matmul(product, choice)
            matmul.move(product.first.address, product.second.address, product.out.address, product.bias)
            matmul.workspace.value, matmul.stream.value = self._workspace, self._stream
            calls.append(LibraryCall(name, partial(self._call, "cublasLtMatmul", *matmul.arguments), is_named=True))
        return calls

    def matmul(self, product: Product, choice: Heuristic) -> Matmul:
        """The call of one algorithm; its addresses, workspace and stream are still 0."""
        descriptor, layouts = self._descriptor(product), self._layouts(product)
        set_bias = partial(self._set, "cublasLtMatmulDescSetAttribute", descriptor, _DESC_BIAS_POINTER)
        return Matmul(self._handle, descriptor, layouts, product, choice, set_bias if product.bias else None)

    def close(self) -> None:
        """Frees descriptors and handle; the calls must not be made any more."""
        while self._made:
            destroy, thing = self._made.pop()
            self._call(destroy, thing)

    def _choices(self, product: Product) -> list[Heuristic]:
        preference = self._make("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
        settings: dict[int, _Integer] = {_PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(WORKSPACE_BYTES)}
        settings |= {attribute: ctypes.c_uint32(ALIGNMENT) for attribute in _PREF_MIN_ALIGNMENTS}
        if product.dtype != product.sum_dtype:
            settings[_PREF_REDUCTION_SCHEME_MASK] = ctypes.c_uint32(_REDUCTION_IN_COMPUTE_TYPE)
        for attribute, value in settings.items():
            self._set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, value)
        count, results = ctypes.c_int(), (Heuristic * ALGORITHMS)()
        layouts = self._layouts(product)
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(self._handle, self._descriptor(product), *layouts, layouts[-1], preference),
            *(ctypes.c_int(ALGORITHMS), results, ctypes.byref(count)),
        )
        return [result for result in results[: count.value] if result.state == 0]

    def _words(self, algorithm: _Algorithm) -> str:
        """The algorithm's own words, such as "algorithm 66, tile 20, split-k 2", without what is 0 or not split."""
        told = []
        for word, (attribute, kind) in _WORDS.items():
            value, written = kind(), ctypes.c_size_t()
            asked = ctypes.byref(algorithm), ctypes.c_int(attribute), ctypes.byref(value)
            size = ctypes.c_size_t(ctypes.sizeof(value))
            status = self._library.cublasLtMatmulAlgoConfigGetAttribute(*asked, size, ctypes.byref(written))
            if not status and value.value > (word == "split-k"):
                told.append(f"{word} {value.value}")
        return ", ".join(told)

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
