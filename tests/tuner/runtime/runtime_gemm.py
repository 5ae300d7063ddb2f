"""A small gemm to launch, and arrays for it."""

import numpy as np

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration

GEMM = catalogue().get("gemm")
TILED = Configuration.of("tiled", {"TILE_WIDTH": 8})
M, N, K = 24, 20, 36
ODD = {"m": 7, "n": 5, "k": 3}


def operands(dtype="float32"):
    generator = np.random.default_rng(3)
    a, b = generator.standard_normal((M, K)).astype(dtype), generator.standard_normal((K, N)).astype(dtype)
    return a, b, np.full((M, N), np.nan, dtype)


class Elsewhere:
    """Says that it lies on a GPU."""

    def __init__(self, shape):
        self.__cuda_array_interface__ = self.interface(shape)

    @property
    def __cuda_array_interface__(self):
        return self.told

    @__cuda_array_interface__.setter
    def __cuda_array_interface__(self, told):
        self.told = told

    @staticmethod
    def interface(shape):
        return {"data": (4096, False), "shape": shape, "typestr": "<f4", "version": 3, "strides": None}
