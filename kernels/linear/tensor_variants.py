"""linear's variants on tensor cores: gemm's with the layer's epilogue, on the product inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.gemm.tensor_mma_space import TENSOR1XTF32, TENSOR3XTF32
from tilewright.kernels.kernel import Preparation, Variant
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values

Result = TypeVar("Result")


@lru_cache(maxsize=64)  # enumerating a space asks for the same one thousands of times
def product(p: Problem) -> Problem:
    """The gemm inside: X Wᵀ, with W as its transposed B."""
    return gemm.KERNEL.problem(p.shape, p.dtype, {"trans_b": True, "accuracy": p.options["accuracy"]})


def on_product(ask: Callable[[Values, Problem], Result]) -> Callable[[Values, Problem], Result]:
    """The same question about the product inside."""
    return lambda c, p: ask(c, product(p))


def constraint_on_product(constraint: Constraint) -> Constraint:
    """The same constraint on the product inside."""
    return Constraint(constraint.name, lambda c, p, d: constraint.holds(c, product(p), d))


def fused(variant: Variant, doc: str) -> Variant:
    """The layer by gemm's variant."""
    return replace(
        variant,
        doc=doc,
        launch=on_product(variant.launch),
        before=tuple(Preparation(one.name, on_product(one.launch)) for one in variant.before),
        constraints=tuple(constraint_on_product(constraint) for constraint in variant.constraints),
        static_shared_bytes=on_product(variant.static_shared_bytes),
        workspace_bytes=on_product(variant.workspace_bytes),
        supports=lambda p: variant.supports(product(p)),
        has_room=lambda p, d: variant.has_room(product(p), d),
    )


LINEAR_TENSOR3XTF32 = fused(TENSOR3XTF32, "FP32 accuracy on tensor cores, bias and activation applied in registers.")
LINEAR_TENSOR1XTF32 = fused(TENSOR1XTF32, "Inputs rounded to TF32, on tensor cores; bias and activation in registers.")
