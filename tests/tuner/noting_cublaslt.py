"""A cublasLt, and a cuBLAS, that note their calls; the heuristic returns three algorithms."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import pytest

from tilewright.tuner.library import cublas, cublaslt

FOUND = ({0: 66, 1: 20, 6: 13}, {0: 66, 1: 20, 6: 13, 2: 1}, {0: 21, 2: 3, 3: 2, 8: 5})
"""What the heuristic returns, by CUBLASLT_ALGO_CONFIG_…; the first two are not told apart by that."""


class Noting:
    """Every function of the library: plain arguments are kept, and it succeeds but for what an algorithm has not."""

    def __init__(self) -> None:
        self.calls = []
        self.cublasLtGetVersion = Version()

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, [plain(argument) for argument in arguments]))
            if name == "cublasLtMatmulAlgoGetHeuristic":
                results, count = arguments[-2:]
                count._obj.value = len(FOUND)
                for place in range(len(FOUND)):
                    results[place].algorithm.data[0], results[place].workspace_bytes = place, 64 * place
            if name == "cublasGetProperty":
                arguments[1]._obj.value = (13, 1, 2)[arguments[0].value]
            if name == "cublasLtMatmulAlgoConfigGetAttribute":
                algorithm, attribute, value = arguments[:3]
                told = FOUND[algorithm._obj.data[0]]
                if attribute.value not in told:
                    return 7
                value._obj.value = told[attribute.value]
            return 0

        return call

    def of(self, name):
        return [arguments for called, arguments in self.calls if called == name]


class Version:
    restype = ctypes.c_int

    def __call__(self):
        return 130102


def plain(argument):
    argument = getattr(argument, "_obj", argument)
    return getattr(argument, "value", argument)


@contextmanager
def noting_library():
    """In place of NVIDIA's."""
    noting = Noting()
    with pytest.MonkeyPatch.context() as patch:
        for library in (cublas, cublaslt):
            patch.setattr(library, "load", lambda _name: noting)
            library.version.cache_clear()
        yield noting
    for library in (cublas, cublaslt):
        library.version.cache_clear()
