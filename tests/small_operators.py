"""A configuration for every problem of tilewright.torch, which compiles quickly."""

from __future__ import annotations

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration

ROWS = Configuration.of("walk", {"BLOCK": 32, "VECTOR_WIDTH": 1})
SMALL = {
    "attention": Configuration.of("tiled", {"TILE_Q": 8, "TILE_K": 8, "LANES": 4}),
    **dict.fromkeys(("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"), ROWS),
    "linear_quantized": Configuration.of("rows", {"WARPS_PER_ROW": 1, "ROWS_PER_BLOCK": 2, "COLUMNS": 1, "UNROLL": 1}),
    "gemv": Configuration.of("naive", {"BLOCK": 128}),
    "conv2d": Configuration.of("direct", {"THREADS": 256}),
    "softmax": Configuration.of("online", {"BLOCK": 32, "UNROLL": 1, "VECTOR_WIDTH": 1}),
}
TILED = ("gemm", "linear", "linear_gated")


class Small(dict[Problem, Configuration]):
    """A configuration for every problem of these kernels; products have tiles of that width."""

    def __init__(self, tile_width: int) -> None:
        tiled = Configuration.of("tiled", {"TILE_WIDTH": tile_width})
        self._by_kernel = SMALL | dict.fromkeys(TILED, tiled)

    def __contains__(self, problem):
        return problem.kernel in self._by_kernel

    def __len__(self):
        return len(self._by_kernel)

    def __missing__(self, problem):
        return self._by_kernel[problem.kernel]


def ours(tw):
    """The operators that were called and computed by our kernels."""
    return {one.operator for one in tw.status() if one.is_ours}
