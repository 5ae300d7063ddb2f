"""What cuDNN is asked for, by a library that notes its calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.library import choice, cudnn
from tilewright.tuner.library.cublas import LibraryCall, LibraryError, library_folder

CONV2D = catalogue().get("conv2d")
IMAGE = {"batch": 2, "height": 7, "width": 9, "channels": 3, "filters": 5, "kernel_h": 3, "kernel_w": 2}
PLACES = {"X": 1, "W": 2, "b": 3, "Y": 4}
WORKING = ((1, 0, 0.5, 3), (7, 0, 0.7, 3), (4, 9, 0.1, 3))  # algorithm, status, time_ms, math


class Noting:
    """Every function of the library: its plain arguments are kept, and it succeeds."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[object]]] = []
        self.cudnnGetVersion = Version()

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            self.calls.append((name, [getattr(argument, "value", argument) for argument in arguments]))
            if name == "cudnnFindConvolutionForwardAlgorithmEx":
                self._find(*arguments[8:11])
            return 0

        return call

    def _find(self, _asked: object, count: object, results: object) -> None:
        for place, (algorithm, status, time_ms, math) in enumerate(WORKING):
            results[place].algorithm, results[place].status = algorithm, status
            results[place].time_ms, results[place].math = time_ms, math
        count._obj.value = len(WORKING)

    def of(self, name: str) -> list[list[object]]:
        return [arguments for called, arguments in self.calls if called == name]


class Version:
    """A function with a type to set."""

    restype = ctypes.c_int

    def __call__(self) -> int:
        return 92801


@pytest.fixture
def library(monkeypatch):
    noting = Noting()
    monkeypatch.setattr(cudnn, "load", lambda _name: noting)
    return noting


def after(call):
    return LibraryCall(f"{call.name} + end", call.enqueue)


def calls(problem):
    return cudnn.Cudnn(11, 12).calls(problem, PLACES, after)


def test_the_convolution_is_the_problems(library):
    steps = {"stride": 2, "stride_w": 1, "padding": 1, "padding_w": 0, "dilation": 1, "dilation_w": 3}
    calls(CONV2D.problem(IMAGE | steps, "float64", {"layout": "nchw", "activation": "relu"}))
    [[_, *filters]] = library.of("cudnnSetFilter4dDescriptor")
    assert filters == [1, 0, 5, 3, 3, 2]
    [[_, *moves]] = library.of("cudnnSetConvolution2dDescriptor")
    assert moves == [1, 0, 2, 1, 1, 3, 1, 1]
    images, out, bias = [arguments[1:] for arguments in library.of("cudnnSetTensor4dDescriptor")]
    assert (images, out, bias) == ([0, 1, 2, 3, 7, 9], [0, 1, 2, 5, 4, 6], [0, 1, 1, 5, 1, 1])


@pytest.mark.parametrize(("accuracy", "math"), [("fp32", 3), ("fp32-fma", 3), ("tf32", 0)])
def test_tf32_is_off_unless_the_caller_admits_it(library, accuracy, math):
    calls(CONV2D.problem(IMAGE, "float32", {"accuracy": accuracy}))
    assert [arguments[1] for arguments in library.of("cudnnSetConvolutionMathType")] == [math]


def test_channels_by_themselves_are_groups(library):
    calls(CONV2D.problem(IMAGE | {"filters": 2}, "float32", {"depthwise": True}))
    assert [arguments[1] for arguments in library.of("cudnnSetConvolutionGroupCount")] == [3]
    [[_, *filters]] = library.of("cudnnSetFilter4dDescriptor")
    assert filters == [0, 1, 6, 1, 3, 2]


@pytest.mark.parametrize(
    ("activation", "fused"),
    [("relu", ["implicit_precomp_gemm", "winograd_nonfused"]), ("none", ["implicit_precomp_gemm"]), ("gelu", [])],
)
def test_algorithms_that_work_are_called_with_an_end_and_fused_where_cudnn_can(library, activation, fused):
    found = calls(CONV2D.problem(IMAGE, "float32", {"activation": activation}))
    names = [call.name for call in found]
    ended = [f"cuDNN 9.28.1 ({word}, FP32) + end" for word in ("implicit_precomp_gemm", "winograd_nonfused")]
    assert [name for name in names if name.endswith("end")] == ended
    assert [name for name in names if "fused)" in name] == [f"cuDNN 9.28.1 ({word}, FP32, fused)" for word in fused]
    for call in found:
        call.enqueue()
    assert len(library.of("cudnnConvolutionForward")) == 2
    assert len(library.of("cudnnConvolutionBiasActivationForward")) == len(fused)


def test_all_that_was_made_is_freed(library):
    with_calls = cudnn.Cudnn(11, 12)
    with_calls.calls(CONV2D.problem(IMAGE, "float32", {"activation": "relu"}), PLACES, after)
    with_calls.close()
    made = [name for name, _ in library.calls if name.startswith("cudnnCreate")]
    freed = [name for name, _ in library.calls if name.startswith("cudnnDestroy")]
    assert sorted(name.removeprefix("cudnnCreate") for name in made) == sorted(
        name.removeprefix("cudnnDestroy") for name in freed
    )


def test_a_search_that_finds_nothing_leaves_no_calls(library, monkeypatch):
    def refuse(self, *_arguments):
        raise LibraryError("cudnnFindConvolutionForwardAlgorithmEx: status 3000")

    monkeypatch.setattr(Noting, "_find", refuse)
    assert calls(CONV2D.problem(IMAGE)) == []


def test_without_cudnn_a_convolution_has_no_library(monkeypatch):
    monkeypatch.setattr(cudnn, "library_folder", lambda _name: None)
    cudnn.is_available.cache_clear()
    assert not choice.has_library("conv2d")
    cudnn.is_available.cache_clear()
    assert library_folder("libno-such-library") is None
