"""linear's variants on tensor cores: gemm's with the layer's epilogue, on the product inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.gemm.streamed_half_space import STREAMED_HALF
from tilewright.kernels.gemm.tensor_fp64_space import TENSOR_FP64
from tilewright.kernels.gemm.tensor_half_space import TENSOR_HALF
from tilewright.kernels.gemm.tensor_mma_space import TENSOR1XTF32, TENSOR3XTF32
from tilewright.kernels.gemm.tensor_sliced_space import TENSOR3XTF32_SLICED
from tilewright.kernels.kernel import TensorMap, Variant
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values

Result = TypeVar("Result")


@lru_cache(maxsize=4096)  # a space asks thousands of times, and tiles are found at as many sizes
def product(p: Problem) -> Problem:
    """The gemm inside: X Wᵀ, with W as its transposed B."""
    options = {"trans_b": True} | {name: p.options[name] for name in ("accuracy", "packed_b", "output")}
    return replace(gemm.KERNEL.problem(p.shape, p.dtype, options), at_launch=p.at_launch)


def on_product(ask: Callable[[Values, Problem], Result]) -> Callable[[Values, Problem], Result]:
    """The predicate on the gemm inside the layer."""
    return lambda c, p: ask(c, product(p))


def constraint_on_product(constraint: Constraint) -> Constraint:
    """The constraint, asked of the gemm that the layer is."""
    return replace(constraint, holds=lambda c, p, d: constraint.holds(c, product(p), d))


ARGUMENTS = {"A": "X", "B": "W", "C": "Y"}
"""The layer's, by those of the product inside."""


def fused(variant: Variant, doc: str) -> Variant:
    """The layer by gemm's variant."""

    def tensor_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
        return tuple(replace(one, tensor=ARGUMENTS[one.tensor]) for one in variant.tensor_maps(c, product(p)))

    return replace(
        variant,
        doc=doc,
        launch=on_product(variant.launch),
        before=tuple(replace(one, launch=on_product(one.launch)) for one in variant.before),
        packing=tuple(replace(one, launch=on_product(one.launch)) for one in variant.packing),
        kept_bytes=lambda p: variant.kept_bytes(product(p)),
        constraints=tuple(constraint_on_product(constraint) for constraint in variant.constraints),
        start=lambda p, d: variant.start(product(p), d),
        static_shared_bytes=on_product(variant.static_shared_bytes),
        workspace_bytes=on_product(variant.workspace_bytes),
        tensor_maps=tensor_maps,
        supports=lambda p: variant.supports(product(p)),
        takes_size=lambda p: variant.takes_size(product(p)),
        is_batch_invariant=on_product(variant.is_batch_invariant),
        is_sound_at_launch=lambda c, p, d: variant.is_sound_at_launch(c, product(p), d),
        has_room=lambda p, d: variant.has_room(product(p), d),
    )


LINEAR_TENSOR3XTF32 = fused(TENSOR3XTF32, "FP32 accuracy on tensor cores, bias and activation applied in registers.")
LINEAR_TENSOR3XTF32_SLICED = fused(
    TENSOR3XTF32_SLICED, "FP32 accuracy for few tiles: groups of warps share a tile's terms; bias and activation fused."
)
LINEAR_TENSOR1XTF32 = fused(TENSOR1XTF32, "Inputs rounded to TF32, on tensor cores; bias and activation in registers.")
LINEAR_TENSOR_HALF = fused(TENSOR_HALF, "bfloat16 and float16 on tensor cores, bias and activation in registers.")
LINEAR_TENSOR_FP64 = fused(TENSOR_FP64, "FP64 on tensor cores, bias and activation applied in registers.")
LINEAR_STREAMED_HALF = fused(
    STREAMED_HALF, "bfloat16 and float16 for few rows of X: W is read once, into registers; bias and activation fused."
)
