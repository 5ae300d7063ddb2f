"""linear: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.kernels.dtypes import HALF, ITEM_BYTES
from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.gemm.layout import takes_rows
from tilewright.kernels.gemm.register_space import REGISTER as GEMM_REGISTER
from tilewright.kernels.gemm.streamed_half_sm90_space import STREAMED_HALF_SM90
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.gemm.tensor_half_packed_sm90_space import TENSOR_HALF_PACKED_SM90
from tilewright.kernels.gemm.tensor_half_sm90_space import TENSOR_HALF_SM90
from tilewright.kernels.gemm.tensor_half_turned_sm90_space import TENSOR_HALF_TURNED_SM90
from tilewright.kernels.gemm.tensor_sm90_space import TENSOR1XTF32_SM90, TENSOR3XTF32_SM90
from tilewright.kernels.kernel import Kernel, Option, RelatedKernel, Tensor, Variant
from tilewright.kernels.linear.reference import ACTIVATIONS, activated, linear_reference, terms
from tilewright.kernels.linear.tensor_variants import (
    LINEAR_STREAMED_HALF,
    LINEAR_TENSOR1XTF32,
    LINEAR_TENSOR3XTF32,
    LINEAR_TENSOR3XTF32_SLICED,
    LINEAR_TENSOR_FP64,
    LINEAR_TENSOR_HALF,
    fused,
    on_product,
    product,
)
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import FinishThere, ProductReference
from tilewright.kernels.space import Constraint, Values, powers_of_two
from tilewright.kernels.variant import always, no_workspace

LINEAR_TENSOR3XTF32_SM90 = fused(
    TENSOR3XTF32_SM90, "FP32 accuracy by Hopper's wgmma, bias and activation applied in registers."
)
LINEAR_TENSOR3XFP16_SM90 = fused(
    TENSOR3XFP16_SM90, "FP32 accuracy by FP16 parts on Hopper's wgmma, X and W packed first; bias and activation fused."
)
LINEAR_TENSOR1XTF32_SM90 = fused(
    TENSOR1XTF32_SM90, "TF32 products by Hopper's wgmma, bias and activation applied in registers."
)
LINEAR_TENSOR_HALF_SM90 = fused(
    TENSOR_HALF_SM90, "bfloat16 and float16 by Hopper's wgmma and tensor maps; bias and activation in registers."
)
LINEAR_TENSOR_HALF_PACKED_SM90 = fused(
    TENSOR_HALF_PACKED_SM90, "bfloat16 and float16 by Hopper's wgmma, X and W packed first; bias and activation fused."
)
LINEAR_TENSOR_HALF_TURNED_SM90 = fused(
    TENSOR_HALF_TURNED_SM90,
    "bfloat16 and float16 on Hopper, the product turned: tiles suit any number of rows; bias and activation fused.",
)
LINEAR_STREAMED_HALF_SM90 = fused(
    STREAMED_HALF_SM90, "bfloat16 and float16 for few rows of X: W is read once, by TMA; bias and activation fused."
)


STRIDED_IS = {"VECTOR_WIDTH": 1, "MIN_BLOCKS": 1}  # what `wpt_strided` fixes of the parameters of `wpt`


def akin(p: Problem) -> Sequence[RelatedKernel]:
    """The layer without an activation, and the gemm inside: the work on sums is a small part of either."""
    products = () if p.options["packed_b"] else gemm.akin(product(p))
    return (RelatedKernel("linear"), *products) if products else ()


def as_wpt(c: Values) -> Values:
    """A configuration of `wpt_strided` as the one of `wpt` with the same tiles."""
    return Values({**c, **STRIDED_IS})


def of_strided(constraint: Constraint) -> Constraint:
    """A constraint of gemm's `wpt` on the product inside `wpt_strided`."""
    return replace(constraint, holds=lambda c, p, d: constraint.holds(as_wpt(c), product(p), d))


TILED = replace(
    fused(gemm.TILED, "Square tiles in shared memory; each thread computes one element of Y."),
    workspace_bytes=no_workspace,
)

WPT_STRIDED = Variant(
    name="wpt_strided",
    starts_search=False,
    doc="More work per thread; each thread loads a run of neighbours, uncoalesced on purpose, to compare with `wpt`.",
    source="wpt_strided.cu",
    launch=on_product(gemm.launch_wpt),
    parameters=(
        powers_of_two("TILE_M", 16, 128, default=64, doc="rows of Y that a block computes"),
        powers_of_two("TILE_N", 16, 128, default=64, doc="columns of Y that a block computes"),
        powers_of_two("TILE_K", 8, 32, default=16, doc="length of a step along k"),
        powers_of_two("WPT_M", 1, 8, default=4, doc="rows of Y that a thread computes"),
        powers_of_two("WPT_N", 1, 8, default=4, doc="columns of Y that a thread computes"),
    ),
    constraints=(
        *(of_strided(constraint) for constraint in gemm.WPT.constraints),
        Constraint(
            "every thread loads a run from both operands",
            lambda c, _p, _d: min(c.TILE_M, c.TILE_N) * c.TILE_K > gemm.threads_wpt(c),
        ),
    ),
    static_shared_bytes=on_product(gemm.shared_bytes_wpt),
    supports=lambda p: not p.is_half,
    takes_size=lambda p: takes_rows(product(p)),
    is_batch_invariant=always,
)

WPT = replace(
    fused(
        gemm.WPT, "More work per thread: a rectangle of Y in registers, double-buffered tiles, coalesced vector loads."
    ),
    workspace_bytes=no_workspace,
)

REGISTER = replace(
    fused(GEMM_REGISTER, GEMM_REGISTER.doc),
    parameters=tuple(replace(q, default=4) if q.name == "WPT_N" else q for q in GEMM_REGISTER.parameters),
)


def flops(p: Problem) -> int:
    """2 m n k: k multiplications and k additions an output, the bias being one of those. The activation is left out."""
    return 2 * p.shape["m"] * p.shape["n"] * p.shape["k"]


def bytes_moved(p: Problem) -> int:
    """Read X, W and b once, write Y once."""
    m, n, k = p.shape["m"], p.shape["n"], p.shape["k"]
    return (m * k + n * k + n) * p.item_bytes + m * n * ITEM_BYTES[gemm.output_dtype(p)]


FINISH = FinishThere(
    Path(__file__).with_name("activated.cu"),
    "b",
    lambda p: {f"ACTIVATION_{str(p.options['activation']).upper()}": "1"},
)

KERNEL = Kernel(
    name="linear",
    doc="Y = act(X Wᵀ + b), a fully connected layer in one launch: X (m, k), W (n, k), b (n), Y (m, n), row-major.",
    folder=Path(__file__).parent,
    axes=("m", "n", "k"),
    launch_axes=("m",),
    row_axis="m",
    dtypes=("float32", "float64", *HALF),
    options=(
        Option(
            "activation", tuple(ACTIVATIONS), default="none", doc="act; gelu is the exact form, by the error function"
        ),
        gemm.ACCURACY,
        replace(gemm.PACKED_B, doc="W is the same in every launch and is packed once, before the first"),
        gemm.OUTPUT,
    ),
    arguments=(
        Tensor("X", "input", lambda p: (p.shape["m"], p.shape["k"]), summed=lambda _p: 1),
        Tensor("W", "input", lambda p: (p.shape["n"], p.shape["k"]), summed=lambda _p: 1),
        Tensor("b", "input", lambda p: (p.shape["n"],)),
        Tensor("Y", "output", lambda p: (p.shape["m"], p.shape["n"]), dtype=gemm.output_dtype),
    ),
    variants=(
        TILED,
        WPT_STRIDED,
        WPT,
        REGISTER,
        LINEAR_TENSOR3XTF32,
        LINEAR_TENSOR3XTF32_SLICED,
        LINEAR_TENSOR3XTF32_SM90,
        LINEAR_TENSOR3XFP16_SM90,
        LINEAR_TENSOR1XTF32,
        LINEAR_TENSOR1XTF32_SM90,
        LINEAR_TENSOR_FP64,
        LINEAR_TENSOR_HALF,
        LINEAR_TENSOR_HALF_SM90,
        LINEAR_TENSOR_HALF_PACKED_SM90,
        LINEAR_TENSOR_HALF_TURNED_SM90,
        LINEAR_STREAMED_HALF,
        LINEAR_STREAMED_HALF_SM90,
    ),
    packed="W",
    akin=akin,
    flops=flops,
    bytes_moved=bytes_moved,
    reference=linear_reference,
    ranking_l2="warm",  # X was just written by the layer before, and W is used batch after batch
    ranks_cold=gemm.RANKS_COLD,
    default_variant="wpt",
    example_shape={"m": 256, "n": 512, "k": 784},
    product=ProductReference(terms, activated, there=FINISH),
)
