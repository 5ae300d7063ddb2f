"""linear_gated: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.gemm.layout import takes_rows
from tilewright.kernels.gemm.streamed_half_sm90_space import STREAMED_HALF_SM90
from tilewright.kernels.gemm.streamed_half_space import STREAMED_HALF
from tilewright.kernels.gemm.tensor_half_sm90_space import LINE_BYTES, TENSOR_HALF_SM90, cluster_k
from tilewright.kernels.gemm.tensor_half_space import TENSOR_HALF, copied_at_once
from tilewright.kernels.gemm.tensor_half_turned_sm90_space import TENSOR_HALF_TURNED_SM90, is_near_fastest
from tilewright.kernels.gemm.tensor_half_turned_sm90_time import start as start_turned
from tilewright.kernels.gemm.tensor_mma_space import threads, tile_n
from tilewright.kernels.kernel import MAX_AXIS, Kernel, Launch, Option, Tensor, TensorMap, Variant, ceil_div
from tilewright.kernels.linear_gated.reference import gated, layer, linear_gated_reference
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.reference import ProductReference
from tilewright.kernels.space import Constraint, Values
from tilewright.kernels.variant import always

Result = TypeVar("Result")

COLUMNS = frozenset({"WARP_N", "TILE_N", "ROWS"})  # parameters that count columns of Y
BLOCK_N, PAIRED_WIDTHS = 64, ((128, 1), (256, 2))  # of tiles of the product, and warpgroups that multiply
RUN = 16  # rows of a tile of W, of which eight are of either matrix


@lru_cache(maxsize=4096)  # a space asks thousands of times, and tiles are found at as many sizes
def product(p: Problem) -> Problem:
    """The gemm inside: X Wᵀ, with all rows of both matrices."""
    inside = gemm.KERNEL.problem({**p.shape, "n": 2 * p.shape["n"]}, p.dtype, {"trans_b": True})
    return replace(inside, at_launch=p.at_launch)


class OfBoth(Mapping[str, int]):
    """The values of gemm's variant for the same tiles of the product inside, which has twice the columns.

    Each is read when it is asked for: a space is listed by what its constraints read.
    """

    def __init__(self, own: Values) -> None:
        self._own = own

    def __getattr__(self, name: str) -> int:
        value: int = getattr(self._own, name)
        return 2 * value if name in COLUMNS else value

    def __getitem__(self, name: str) -> int:
        return 2 * self._own[name] if name in COLUMNS else self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def of_both(c: Values) -> Values:
    """The configuration of gemm's variant that has the same tiles of the product inside."""
    return cast("Values", OfBoth(c))


def has_product(p: Problem) -> bool:
    """Whether columns of both matrices together still are an axis."""
    return 2 * p.shape["n"] <= MAX_AXIS


def as_it_is(c: Values) -> Values:
    """The configuration of gemm's variant that counts columns of the product, not of Y."""
    return c


def on_product(
    ask: Callable[[Values, Problem], Result], inside: Callable[[Values], Values] = of_both
) -> Callable[[Values, Problem], Result]:
    """The predicate on the gemm inside the layer, with the configuration of gemm's variant."""
    return lambda c, p: ask(inside(c), product(p))


def constraint_on_product(constraint: Constraint, inside: Callable[[Values], Values] = of_both) -> Constraint:
    """The constraint, asked of the gemm that the layer is."""
    return replace(constraint, holds=lambda c, p, d: constraint.holds(inside(c), product(p), d))


def runs_stay_whole(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread's copies are of one matrix: lines copied at a time are whole runs, or all of the tile.

    Where elements are copied one by one that does not matter.
    """
    copied = copied_at_once("b", p.shape["k"], product(p))
    lines = threads(c) // min(c.TILE_K // copied, threads(c))
    return copied == 1 or lines % RUN == 0 or lines >= 2 * tile_n(c)


def launch_tiled(c: Values, p: Problem) -> Launch:
    """A launch of a square block for each square tile, tiles along x."""
    width = c.TILE_WIDTH
    return Launch((ceil_div(p.shape["m"], width) * ceil_div(p.shape["n"], width), 1, 1), (width, width, 1))


SMALLEST_TENSOR_N = 16  # half of the smallest tile: up to it, none suits some problems


def tensor_is_supported(p: Problem) -> bool:
    """Whether some tile suits the problem: rows are copied by 16 bytes or one element at a time.

    With two or four elements at a time, lines that stay whole are too many for the tiles of small problems.
    """
    is_whole = p.shape["k"] % 2 == 1 or p.shape["k"] * p.item_bytes % 16 == 0
    return is_whole and p.shape["n"] > SMALLEST_TENSOR_N and has_product(p) and TENSOR_HALF.supports(product(p))


TILED = Variant(
    name="tiled",
    starts_search=False,
    doc="Square tiles in shared memory; each thread computes one element of Y and both its sums.",
    source="tiled.cu",
    launch=launch_tiled,
    parameters=gemm.TILED.parameters,
    static_shared_bytes=lambda c, p: 3 * c.TILE_WIDTH * (c.TILE_WIDTH + 1) * p.item_bytes,
    takes_size=lambda p: takes_rows(product(p)),
    is_batch_invariant=always,
)

TENSOR = replace(
    TENSOR_HALF,
    doc="Tensor cores: a block computes both products and holds both sums in registers.",
    launch=on_product(TENSOR_HALF.launch),
    constraints=(
        *(constraint_on_product(constraint) for constraint in TENSOR_HALF.constraints),
        Constraint("a thread copies rows of one matrix", runs_stay_whole),
    ),
    static_shared_bytes=on_product(TENSOR_HALF.static_shared_bytes),
    workspace_bytes=on_product(TENSOR_HALF.workspace_bytes),
    takes_size=lambda p: takes_rows(product(p)),
    is_sound_at_launch=lambda c, p, d: TENSOR_HALF.is_sound_at_launch(of_both(c), product(p), d),
    supports=tensor_is_supported,
)


def tensor_sm90_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of X and W by steps, one box each of G and U half as high as gemm's, and of Y as a warp stores it."""
    x, w, y = TENSOR_HALF_SM90.tensor_maps(c, product(p))
    (_, lines, step), (_, rows, _) = w.box, y.box
    stored = LINE_BYTES if c.TILE_N // 2 * p.item_bytes % LINE_BYTES == 0 else LINE_BYTES // 2
    return (
        replace(x, tensor="X"),
        replace(w, tensor="W", box=(1, lines // 2, step)),
        TensorMap("Y", (1, rows, stored // p.item_bytes), stored),
    )


def shares_are_pairs(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether a thread's sums of either matrix, by four, divide among the blocks of a cluster that share a tile."""
    return c.TILE_M // 64 // c.MULTIPLIERS * c.TILE_N // 8 % (2 * cluster_k(c)) == 0 or c.SPLIT_K == 1


def tensor_sm90_is_supported(p: Problem) -> bool:
    """Whether gemm's variant takes the product, and rows of Y begin at multiples of 16 bytes."""
    return p.shape["n"] * p.item_bytes % 16 == 0 and has_product(p) and TENSOR_HALF_SM90.supports(product(p))


TENSOR_SM90 = replace(
    TENSOR_HALF_SM90,
    doc="Hopper's wgmma and tensor maps: a block computes both products and holds both sums in registers.",
    launch=on_product(TENSOR_HALF_SM90.launch, as_it_is),
    constraints=(
        *(constraint_on_product(constraint, as_it_is) for constraint in TENSOR_HALF_SM90.constraints),
        Constraint("blocks of a cluster have shares of both matrices", shares_are_pairs),
    ),
    start=lambda p, d: TENSOR_HALF_SM90.start(product(p), d),
    static_shared_bytes=on_product(TENSOR_HALF_SM90.static_shared_bytes, as_it_is),
    workspace_bytes=on_product(TENSOR_HALF_SM90.workspace_bytes, as_it_is),
    tensor_maps=tensor_sm90_maps,
    takes_size=lambda p: takes_rows(product(p)),
    is_sound_at_launch=lambda c, p, d: TENSOR_HALF_SM90.is_sound_at_launch(c, product(p), d),
    supports=tensor_sm90_is_supported,
    has_room=lambda p, d: TENSOR_HALF_SM90.has_room(product(p), d),
)


def turned_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of X, W and Y: gemm's, with boxes that take 64 rows of either matrix in turn."""
    x, w, y = TENSOR_HALF_TURNED_SM90.tensor_maps(c, product(p))
    box = (1, BLOCK_N, w.box[2])
    return replace(x, tensor="X"), replace(w, tensor="W", box=box), replace(y, tensor="Y")


TURNED_SM90 = replace(
    TENSOR_HALF_TURNED_SM90,
    doc="The product turned on Hopper: tiles suit any number of rows, with both sums in registers.",
    launch=on_product(TENSOR_HALF_TURNED_SM90.launch, as_it_is),
    constraints=(
        *(
            constraint_on_product(constraint, as_it_is)
            for constraint in TENSOR_HALF_TURNED_SM90.constraints
            if constraint.holds is not is_near_fastest
        ),
        Constraint(
            "a warpgroup has columns of both matrices", lambda c, _p, _d: c.TILE_N // BLOCK_N % (2 * c.MULTIPLIERS) == 0
        ),
        Constraint(
            "by estimate it takes little longer than the fastest",
            lambda c, p, d: is_near_fastest(c, product(p), d, PAIRED_WIDTHS),
            is_thrift=True,
        ),
    ),
    start=lambda p, d: start_turned(product(p), d, PAIRED_WIDTHS),
    static_shared_bytes=on_product(TENSOR_HALF_TURNED_SM90.static_shared_bytes, as_it_is),
    workspace_bytes=on_product(TENSOR_HALF_TURNED_SM90.workspace_bytes, as_it_is),
    tensor_maps=turned_maps,
    takes_size=lambda p: takes_rows(product(p)),
    is_sound_at_launch=lambda c, p, d: TENSOR_HALF_TURNED_SM90.is_sound_at_launch(c, product(p), d),
    supports=lambda p: tensor_sm90_is_supported(p) and 2 * p.shape["n"] > BLOCK_N,  # else half of a tile is empty
    has_room=lambda p, d: TENSOR_HALF_TURNED_SM90.has_room(product(p), d),
)


def tensor_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of X and W by steps: a block loads its columns of G, and the same of U."""
    x, w = STREAMED_HALF_SM90.tensor_maps(c, product(p))
    return (replace(x, tensor="X"), replace(w, tensor="W"))


def streamed(variant: Variant, doc: str) -> Variant:
    """The variant that computes both products by gemm's variant, with twice as many columns a block."""
    return replace(
        variant,
        doc=doc,
        launch=on_product(variant.launch),
        constraints=tuple(constraint_on_product(constraint) for constraint in variant.constraints),
        static_shared_bytes=on_product(variant.static_shared_bytes),
        supports=lambda p: has_product(p) and variant.supports(product(p)),
        start=lambda _p, _d: {},
    )


STREAMED = streamed(
    STREAMED_HALF, "For few rows of X: both matrices of weights are read once, directly into registers."
)
STREAMED_SM90 = replace(
    streamed(STREAMED_HALF_SM90, "For few rows of X on Hopper: both matrices of weights are read once, by TMA."),
    tensor_maps=tensor_maps,
)


def flops(p: Problem) -> int:
    """4 m n k: both products; what becomes of their sums is left out."""
    return 4 * p.shape["m"] * p.shape["n"] * p.shape["k"]


def bytes_moved(p: Problem) -> int:
    """Read X and W once, write Y once."""
    m, n, k = (p.shape[axis] for axis in "mnk")
    return (m * k + 2 * n * k + m * n) * p.item_bytes


KERNEL = Kernel(
    name="linear_gated",
    doc="Y = act(X Gᵀ) * (X Uᵀ) in one launch: X (m, k), W (2 n, k) with the rows of G and then of U, Y (m, n).",
    folder=Path(__file__).parent,
    axes=("m", "n", "k"),
    launch_axes=("m",),
    row_axis="m",
    dtypes=HALF,
    options=(
        Option("activation", ("silu", "gelu", "relu", "sigmoid"), default="silu", doc="act, of the first product"),
    ),
    arguments=(
        Tensor("X", "input", lambda p: (p.shape["m"], p.shape["k"]), summed=lambda _p: 1),
        Tensor("W", "input", lambda p: (2 * p.shape["n"], p.shape["k"]), summed=lambda _p: 1),
        Tensor("Y", "output", lambda p: (p.shape["m"], p.shape["n"])),
    ),
    variants=(TILED, TENSOR, TENSOR_SM90, TURNED_SM90, STREAMED, STREAMED_SM90),
    flops=flops,
    bytes_moved=bytes_moved,
    reference=linear_gated_reference,
    ranking_l2="cold",  # a model's weights do not fit the cache
    default_variant="tensor_half",
    example_shape={"m": 16, "n": 1024, "k": 1024},
    product=ProductReference(lambda p: 2 * p.shape["k"], gated, layer),
)
