"""cuDNN by ctypes: its convolutions, the fastest of them by its own search, on our arrays and stream.

Functions, enumerators and structures are those of cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h (9.28), the legacy API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache

from tilewright.kernels.conv2d import shape as sizes
from tilewright.kernels.problem import Problem
from tilewright.tuner.library.cublas import LibraryCall, LibraryError, library_folder, load

WORKSPACE_BYTES = 512 << 20
"""The algorithms' workspace: for ResNet-50's layers and a batch of 32, Winograd's and the explicit product fit."""

MOST_TIMED = 4
"""Algorithms that are timed here: the first in the order of cuDNN's own times."""

_ALGORITHMS = (
    "IMPLICIT_GEMM",
    "IMPLICIT_PRECOMP_GEMM",
    "GEMM",
    "DIRECT",
    "FFT",
    "FFT_TILING",
    "WINOGRAD",
    "WINOGRAD_NONFUSED",
)
_IMPLICIT_PRECOMP_GEMM = 1  # the only one that admits the identity as an activation
_DATA = {"float32": 0, "float64": 1}  # CUDNN_DATA_FLOAT, _DOUBLE
_FORMAT = {"nchw": 0, "nhwc": 1}
_DEFAULT_MATH, _FMA_MATH = 0, 3  # the default admits TF32 for FP32 data
_CROSS_CORRELATION = 1
_FUSED = {"relu": 1, "none": 5}  # CUDNN_ACTIVATION_RELU, _IDENTITY
_PROPAGATE_NAN = 1


class _Performance(ctypes.Structure):
    """The structure cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = [
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time_ms", ctypes.c_float),
        ("workspace_bytes", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    ]


@cache
def is_available() -> bool:
    """Whether cuDNN is here."""
    return library_folder("libcudnn") is not None


class Cudnn:
    """A handle of the current context; its calls go to `stream` with `workspace` (WORKSPACE_BYTES on the device)."""

    def __init__(self, stream: int, workspace: int) -> None:
        for name in ("libcublasLt", "libcublas"):
            load(name)  # what it opens by bare name
        self._library = load("libcudnn")
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._handle = self._make("")
        self._call("cudnnSetStream", self._handle, ctypes.c_void_p(stream))
        self._workspace = ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE_BYTES)

    @property
    def version(self) -> str:
        """The version of cuDNN, such as "9.28.1"."""
        number = self._library.cudnnGetVersion()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def calls(
        self, problem: Problem, pointers: Mapping[str, int], after: Callable[[LibraryCall], LibraryCall]
    ) -> list[LibraryCall]:
        """The fastest calls by cuDNN's search, each with what comes `after` a convolution, fused where cuDNN can."""
        x, w, y = (ctypes.c_void_p(pointers[name]) for name in "XWY")
        one, zero = self._scalars(problem)
        images, filters, moves, out = self._descriptors(problem)
        factors = (images, x, filters, w, moves)
        found = self._search(factors, out, y)
        bias = self._tensor(problem, 1, sizes.out_channels(problem), 1, 1)
        b = ctypes.c_void_p(pointers["b"])
        calls: list[LibraryCall] = []
        for choice in found[:MOST_TIMED]:
            algorithm = ctypes.c_int(choice.algorithm)
            name = self._name(problem, choice)
            arguments = (one, *factors, algorithm, *self._workspace, zero, out, y)
            calls.append(after(LibraryCall(name, self._enqueue("cudnnConvolutionForward", *arguments))))
            word = str(problem.options["activation"])
            if word == "relu" or (word == "none" and choice.algorithm == _IMPLICIT_PRECOMP_GEMM):
                activation = self._activation(word)
                fused = (one, *factors, algorithm, *self._workspace, zero, out, y, bias, b, activation, out, y)
                call = self._enqueue("cudnnConvolutionBiasActivationForward", *fused)
                calls.append(LibraryCall(name.replace(")", ", fused)"), call))
        return calls

    def close(self) -> None:
        """Frees descriptors and handle; the calls must not be made any more."""
        while self._made:
            destroy, thing = self._made.pop()
            self._call(destroy, thing)

    def _search(
        self, factors: tuple[ctypes.c_void_p, ...], out: ctypes.c_void_p, y: ctypes.c_void_p
    ) -> list[_Performance]:
        """The algorithms that work for this convolution, the fastest first."""
        count, results = ctypes.c_int(), (_Performance * (2 * len(_ALGORITHMS)))()
        try:
            self._call(
                "cudnnFindConvolutionForwardAlgorithmEx",
                *(self._handle, *factors, out, y, ctypes.c_int(len(results)), ctypes.byref(count), results),
                *self._workspace,
            )
        except LibraryError:  # it has none for this convolution
            return []
        return [result for result in results[: count.value] if result.status == 0]

    def _name(self, problem: Problem, choice: _Performance) -> str:
        known = choice.algorithm < len(_ALGORITHMS)
        algorithm = _ALGORITHMS[choice.algorithm] if known else str(choice.algorithm)
        exact = {"float32": "FP32", "float64": "FP64"}[problem.dtype]
        precision = exact if choice.math == _FMA_MATH or problem.dtype == "float64" else "TF32"
        return f"cuDNN {self.version} ({algorithm.lower()}, {precision})"

    def _descriptors(self, problem: Problem) -> tuple[ctypes.c_void_p, ...]:
        """The descriptors of the images, the filters, the convolution and the output."""
        shape, depthwise = problem.shape, bool(problem.options["depthwise"])
        images = self._tensor(problem, shape["batch"], shape["channels"], shape["height"], shape["width"])
        out = self._tensor(problem, shape["batch"], sizes.out_channels(problem), *sizes.out_extents(problem))
        filters = self._make("FilterDescriptor")
        depth = 1 if depthwise else shape["channels"]
        stored = (sizes.out_channels(problem), depth, shape["kernel_h"], shape["kernel_w"])
        kinds = _DATA[problem.dtype], _FORMAT[str(problem.options["layout"])]
        self._call("cudnnSetFilter4dDescriptor", filters, *map(ctypes.c_int, (*kinds, *stored)))
        moves = self._make("ConvolutionDescriptor")
        steps = [shape[name + suffix] for name in ("padding", "stride", "dilation") for suffix in ("", "_w")]
        words = map(ctypes.c_int, (*steps, _CROSS_CORRELATION, _DATA[problem.dtype]))
        self._call("cudnnSetConvolution2dDescriptor", moves, *words)
        self._call("cudnnSetConvolutionGroupCount", moves, ctypes.c_int(shape["channels"] if depthwise else 1))
        admits_tf32 = problem.options["accuracy"] == "tf32" and problem.dtype == "float32"
        self._call("cudnnSetConvolutionMathType", moves, ctypes.c_int(_DEFAULT_MATH if admits_tf32 else _FMA_MATH))
        return images, filters, moves, out

    def _tensor(self, problem: Problem, *extents: int) -> ctypes.c_void_p:
        """Images, channels, height and width, in the problem's layout."""
        tensor = self._make("TensorDescriptor")
        kinds = _FORMAT[str(problem.options["layout"])], _DATA[problem.dtype]
        self._call("cudnnSetTensor4dDescriptor", tensor, *map(ctypes.c_int, (*kinds, *extents)))
        return tensor

    def _activation(self, word: str) -> ctypes.c_void_p:
        activation = self._make("ActivationDescriptor")
        kinds = map(ctypes.c_int, (_FUSED[word], _PROPAGATE_NAN))
        self._call("cudnnSetActivationDescriptor", activation, *kinds, ctypes.c_double(0))
        return activation

    def _scalars(self, problem: Problem) -> tuple[object, object]:
        real = ctypes.c_float if problem.dtype == "float32" else ctypes.c_double
        return ctypes.byref(real(1)), ctypes.byref(real(0))

    def _enqueue(self, name: str, *arguments: object) -> Callable[[], None]:
        return lambda: self._call(name, self._handle, *arguments)

    def _make(self, what: str) -> ctypes.c_void_p:
        """A handle or a descriptor, freed by `close`."""
        thing = ctypes.c_void_p()
        self._call(f"cudnnCreate{what}", ctypes.byref(thing))
        self._made.append((f"cudnnDestroy{what}", thing))
        return thing

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise LibraryError(f"{name}: status {status}")
