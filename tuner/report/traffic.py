"""Bytes that a launch of a product asks of global memory, predicted from its tiles."""

from __future__ import annotations

from tilewright.kernels.gemm import register_space, tensor_mma_space, tensor_sm90_space
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration


def tile_of(configuration: Configuration) -> tuple[int, int]:
    """Rows and columns of the output that share what is fetched from global memory; (1, 1) where nothing is shared.

    Only products have tiles here: gemm's and linear's variants.
    """
    c, variant = configuration.values, configuration.variant
    if variant == "tiled":
        return c.TILE_WIDTH, c.TILE_WIDTH
    if variant in {"wpt", "wpt_strided"}:
        return c.TILE_M, c.TILE_N
    if variant == "register":
        return register_space.tile_m(c), register_space.tile_n(c)
    if variant.endswith("_sm90"):
        return _hopper_tile(configuration)
    if variant.startswith("tensor"):
        return tensor_mma_space.tile_m(c), tensor_mma_space.tile_n(c)
    return 1, 1


def _hopper_tile(configuration: Configuration) -> tuple[int, int]:
    c = configuration.values
    if configuration.variant == TENSOR3XFP16_SM90.name:
        return c.TILE_M * c.CLUSTER, c.TILE_N
    sides = (c.TILE_S, tensor_sm90_space.tile_r(c))
    return sides if c.SHARED_A else (sides[1], sides[0])


def predicted_bytes(problem: Problem, tile: tuple[int, int]) -> float:
    """Bytes that loads ask of global memory for a product with such tiles: 2 m n k / TILE_WIDTH numbers."""
    m, n, k = (problem.shape[axis] for axis in "mnk")
    return m * n * k * problem.item_bytes * (1 / tile[0] + 1 / tile[1])
