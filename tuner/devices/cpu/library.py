"""The CPU device's library: the OpenBLAS inside NumPy's wheel, called directly, on one thread, in its own process."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.problem import Problem
from tilewright.tuner.library.names import OPENBLAS, is_launched
from tilewright.tuner.outcome import Resources

_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # cblas.h
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class LibraryCall:
    """An Executable that is the library's routine: `command` answers like the host runner's `sample`."""

    name: str
    command: tuple[str, ...]
    resources: Resources = field(default_factory=Resources)
    compile_ms: float = 0.0

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that give the library one thread, as the kernels have."""
        return _ONE_THREAD


def library_call(problem: Problem, scalars: Mapping[str, float], sources: Mapping[str, Path]) -> LibraryCall | None:
    """OpenBLAS's call for the problem, with inputs from these files.

    None where it has no routine for the problem, or where NumPy comes with another BLAS.
    """
    if not _computes(problem):
        return None
    what = _what(problem, scalars) | {"sources": {name: str(path) for name, path in sources.items()}}
    rest = ", bias and activation by NumPy" if problem.kernel == "linear" else ""
    name = f"{OPENBLAS}{_versions()} (cblas_{_routine(problem)}{rest}, 1 thread)"
    return LibraryCall(name, (sys.executable, "-P", "-m", "tilewright.tuner.devices.cpu.library", json.dumps(what)))


def call_here(problem: Problem, scalars: Mapping[str, float], addresses: Mapping[str, int]) -> None:
    """Makes the call in this process, on arrays at these addresses, with as many threads as OpenBLAS may use here."""
    what = _what(problem, scalars)
    _CALLS[problem.kernel](what | {"addresses": addresses}, _routine_of(what["library"], what["routine"]))()


def why_not_here(name: str) -> str:
    """Why the call of that name cannot be made in this process; empty where it can."""
    if not is_launched(name):
        return "it was not verified"
    is_here = _find_library() is not None and name.startswith(f"{OPENBLAS}{_versions()} ")
    return "" if is_here else f"{OPENBLAS}{_versions()} is installed"


def _computes(problem: Problem) -> bool:
    is_known = problem.kernel in _CALLS and _find_library() is not None and not problem.is_half
    return is_known and problem.options.get("activation") != "gelu"  # NumPy has no error function


def _what(problem: Problem, scalars: Mapping[str, float]) -> dict[str, Any]:
    """The call as data; a result that is not read may hold anything before."""
    unread = {"beta": 0.0} if problem.options.get("beta_zero") else {}
    return {
        "problem": {**problem.as_json(), "shape": dict(problem.shape)},
        "scalars": {**scalars, **unread},
        "sources": {},
        "library": str(_find_library()),
        "routine": f"scipy_cblas_{_routine(problem)}64_",
    }


def _routine(problem: Problem) -> str:
    return f"{'s' if problem.dtype == 'float32' else 'd'}{'gemm' if problem.kernel == 'linear' else problem.kernel}"


@cache
def _routine_of(library: str, routine: str) -> Any:
    found = getattr(ctypes.CDLL(library), routine)
    found.restype = None
    return found


def _blas() -> dict[str, str]:
    configuration: Any = np.show_config(mode="dicts")
    blas: dict[str, str] = configuration["Build Dependencies"]["blas"]
    return blas


@cache
def _versions() -> str:
    version = ".".join(_blas().get("version", "").split(".")[:3])
    return f"{version} of NumPy {np.__version__}"


@cache
def _find_library() -> Path | None:
    """OpenBLAS's shared library with integers of 64 bits, in NumPy's wheel for Linux; None where it is not there."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    return next(folder.glob("libscipy_openblas64_*.so"), None) if _blas().get("name") == "scipy-openblas" else None


def _gemm(what: Any, call: Any) -> Callable[[], None]:
    shape = what["problem"]["shape"]
    batch, strides = shape["batch"], [shape[f"stride_{matrix}"] for matrix in "abc"]
    real, arrays = _operands(what, {"A": 0, "B": 0, "C": shape["m"] * shape["ldc"] + (batch - 1) * strides[2]})
    trans_a, trans_b = (what["problem"]["options"][option] for option in ("trans_a", "trans_b"))
    integers = [ctypes.c_int64(size) for size in (shape[axis] for axis in "mnk")]
    orders = [_TRANSPOSED if transposed else _AS_IT_IS for transposed in (trans_a, trans_b)]
    pitches = [ctypes.c_int64(shape[f"ld{matrix}"]) for matrix in "abc"]
    alpha, beta = real(what["scalars"]["alpha"]), real(what["scalars"]["beta"])
    steps = [(array.ctypes.data, stride * array.itemsize) for array, stride in zip(arrays, strides, strict=True)]
    products = [[ctypes.c_void_p(start + i * step) for start, step in steps] for i in range(batch)]
    keep = arrays  # the pointers do not

    def run() -> None:
        for a, b, c in products:
            call(_ROW_MAJOR, *orders, *integers, alpha, a, pitches[0], b, pitches[1], beta, c, pitches[2])
        assert keep  # noqa: S101

    return run


def _gemv(what: Any, call: Any) -> Callable[[], None]:
    m, n = (what["problem"]["shape"][axis] for axis in "mn")
    real, arrays = _operands(what, {"A": m * n, "x": n, "y": m})
    alpha, beta = real(what["scalars"]["alpha"]), real(what["scalars"]["beta"])
    trans_a = what["problem"]["options"]["trans_a"]
    rows, columns, one = (ctypes.c_int64(size) for size in ((n, m, 1) if trans_a else (m, n, 1)))
    a, x, y = (array.ctypes.data_as(ctypes.c_void_p) for array in arrays)
    keep = arrays

    def run() -> None:
        call(_ROW_MAJOR, _TRANSPOSED if trans_a else _AS_IT_IS, rows, columns, alpha, a, columns, x, one, beta, y, one)
        assert keep  # noqa: S101

    return run


def _linear(what: Any, call: Any) -> Callable[[], None]:
    """The product, then bias and activation in place by NumPy."""
    m, n, k = (what["problem"]["shape"][axis] for axis in "mnk")
    real, (x, w, b, y) = _operands(what, {"X": m * k, "W": n * k, "b": n, "Y": m * n})
    rows, columns, depth = (ctypes.c_int64(size) for size in (m, n, k))
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, w, y)]
    one, zero, layer = real(1.0), real(0.0), y.reshape(m, n)
    activate = _ACTIVATIONS[what["problem"]["options"]["activation"]]
    orders = (_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED)
    keep = x, w

    def run() -> None:
        call(*orders, rows, columns, depth, one, pointers[0], depth, pointers[1], depth, zero, pointers[2], columns)
        np.add(layer, b, out=layer)
        activate(layer)
        assert keep  # noqa: S101

    return run


def _sigmoid(layer: np.ndarray[Any, Any]) -> None:
    np.negative(layer, out=layer)
    np.exp(layer, out=layer)
    np.add(layer, 1, out=layer)
    np.reciprocal(layer, out=layer)


def _silu(layer: np.ndarray[Any, Any]) -> None:
    shrunk = np.exp(-np.abs(layer))
    np.multiply(layer, np.where(layer < 0, shrunk, 1), out=layer)
    np.divide(layer, 1 + shrunk, out=layer)


_ACTIVATIONS: Mapping[str, Callable[[np.ndarray[Any, Any]], None]] = {
    "none": lambda _layer: None,
    "relu": lambda layer: np.maximum(layer, 0, out=layer),
    "tanh": lambda layer: np.tanh(layer, out=layer),
    "sigmoid": _sigmoid,
    "silu": _silu,
}

_CALLS = {"gemm": _gemm, "gemv": _gemv, "linear": _linear}


def _operands(what: Any, sizes: Mapping[str, int]) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """The C type of the scalars, and the arrays by name: in place, or from files, zero where nothing is read."""
    dtype = what["problem"]["dtype"]
    real = ctypes.c_float if dtype == "float32" else ctypes.c_double
    if "addresses" in what:  # what has no size here is passed on by its address alone
        at = what["addresses"]
        return real, [np.ctypeslib.as_array((real * max(1, n)).from_address(at[name])) for name, n in sizes.items()]
    arrays = [
        np.fromfile(what["sources"][name], dtype) if name in what["sources"] else np.zeros(size, dtype)
        for name, size in sizes.items()
    ]
    return real, arrays


def _cpu_s(run: Callable[[], None], launches: int) -> float:
    started = time.thread_time()
    for _ in range(launches):
        run()
    return (time.thread_time() - started) / launches


def _answer(what: Any) -> None:
    """Samples for each line on standard input, as host/runner.cpp gives them."""
    run = _CALLS[what["problem"]["kernel"]](what, _routine_of(what["library"], what["routine"]))
    run()
    one_s = _cpu_s(run, 1)
    for line in sys.stdin:
        count, min_s, evicted_bytes = line.split()
        walk = np.zeros(int(evicted_bytes) // 8) if int(evicted_bytes) else None
        launches = 1 if walk is not None else max(1, int(float(min_s) / max(one_s, 1e-8)) + 1)
        for _ in range(int(count)):
            if walk is not None:
                walk += 1.0
            print(f"{_cpu_s(run, launches):.12f}", flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    _answer(json.loads(sys.argv[1]))
