"""gemm's variants on the tensor cores of compute capability 9.0: their parameters, what they take, which are of use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from tilewright.kernels.kernel import Launch, TensorMap, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Parameter, Values, choice, no_start
from tilewright.kernels.variant import hopper_variant, no_workspace

STEP_K = 32  # of the source: a line of the tensor cores' widest swizzle
LINE_BYTES = 4 * STEP_K
ALIGNMENT = 1024  # of a tile in shared memory: eight lines, the period of the swizzle
SHIFTED_LINE_BYTES = 145  # where rows are no multiples of 16 bytes: 36 elements, and 4 for each sixteen lines
PADDING = 8  # elements of a line of one k
MOST_SUMS = 192  # of a thread of 232 registers: the rest are the fragment at work and addresses
ERROR_UNITS = (16, 70, 132)  # at most 2^-24 of a product, by SMALL_BF16; millions of random ones reached 52 and 90
C_BOUND = 2  # of them that the bound admits, times sqrt(k)
FEWEST_STEPS = 3  # of a block where k is split
MOST_ROUNDS = 4  # of tiles a block where k is split: with more, what the last round leaves idle is little
MOST_ROUND = 256  # tiles that a block goes through before it looks which need a second pass
SMALL_SHARED, SMALL_REGISTER = 64, 128  # a tile that may leave multiprocessors idle


def tile_r(c: Values) -> int:
    """Lines of the operand that goes through registers."""
    return 64 * c.BLOCKS_R * c.CONSUMERS


def cluster(c: Values) -> int:
    """Blocks side by side that share the lines in shared memory."""
    return c.get("CLUSTER", 1)


def tile_counts(c: Values, p: Problem) -> tuple[int, int]:
    """How many tiles there are along m and along n, of whole clusters."""
    tile_m, tile_n = (c.TILE_S, tile_r(c) * cluster(c)) if c.SHARED_A else (tile_r(c) * cluster(c), c.TILE_S)
    return ceil_div(p.shape["m"], tile_m), ceil_div(p.shape["n"], tile_n)


def all_tiles(c: Values, p: Problem) -> int:
    """How many tiles there are, of all matrices of the batch."""
    along_m, along_n = tile_counts(c, p)
    return along_m * along_n * p.shape["batch"]


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid, as whole clusters."""
    return min(c.BLOCKS // cluster(c), all_tiles(c, p) * c.SPLIT_K) * cluster(c)


def threads(c: Values) -> int:
    """Threads of a block: those that multiply, those that load and, with three products, those that write low parts."""
    return 128 * (c.CONSUMERS + (2 if c.PRODUCTS == 3 else 1))


@dataclass(frozen=True)
class InMemory:
    """How an operand lies (wgmma/stage.cuh): contiguous along k or not; in rows of whole 16 bytes or not."""

    along_k: bool
    is_whole: bool
    is_shifted: bool


def in_memory(p: Problem, operand: str) -> InMemory:
    """How A ("a") or B ("b") lies in memory."""
    along_k = bool(p.options["trans_b"]) if operand == "b" else not p.options["trans_a"]
    stride = p.shape[f"stride_{operand}"] if p.shape["batch"] > 1 else 0
    length = p.shape["k"] if along_k else p.shape["m" if operand == "a" else "n"]
    divides = gcd(length, p.shape[f"ld{operand}"], stride, 4) == 4
    return InMemory(along_k, divides, not divides and stride % 4 == 0)


def tensor_maps(c: Values, _p: Problem) -> tuple[TensorMap, ...]:
    """The map of the operand in shared memory: a block of a cluster loads its share of a step's lines at once."""
    return (TensorMap("A" if c.SHARED_A else "B", (1, c.TILE_S // cluster(c), STEP_K)),)


def can_be_sent(p: Problem, operand: str) -> bool:
    """Whether a tensor map can name its lines of k."""
    memory = in_memory(p, operand)
    return memory.along_k and memory.is_whole


def lines_can_be_sent(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a tensor map can name the lines that a cluster shares, and each of its blocks has a tile."""
    return can_be_sent(p, "a" if c.SHARED_A else "b") and p.shape["n" if c.SHARED_A else "m"] > tile_r(c)


def in_order_bytes(tile: int, memory: InMemory) -> int:
    """Bytes of a step of an operand as it lies in memory."""
    if not memory.along_k:
        return 4 * STEP_K * (tile + PADDING)
    return tile * (SHIFTED_LINE_BYTES if memory.is_shifted else LINE_BYTES)


def stage_bytes(c: Values, p: Problem) -> int:
    """Bytes of a step of both operands, the low parts of one, and a copy of it if moved (staged_convert.cuh)."""
    shared = c.TILE_S * LINE_BYTES
    low = shared if c.PRODUCTS == 3 else 0
    coarse = shared // 2 if c.SMALL_BF16 == 1 else 0
    read, other = in_memory(p, "a" if c.SHARED_A else "b"), in_memory(p, "b" if c.SHARED_A else "a")
    is_staged = c.PRODUCTS == 3 and (not read.along_k or read.is_shifted)
    staged = in_order_bytes(c.TILE_S, read) if is_staged else 0
    return ceil_div(shared + low + coarse + in_order_bytes(tile_r(c), other) + staged, ALIGNMENT) * ALIGNMENT


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the ring, and of its alignment."""
    return c.STAGES * stage_bytes(c, p) + ALIGNMENT


def marks_bytes(c: Values, p: Problem) -> int:
    """Bytes of marks (wgmma/marks.cuh): two words, and twice two bits a tile of a block's round; 0 with one product."""
    if c.PRODUCTS == 1:
        return 0
    most = (
        all_tiles(c, p) // blocks(c, p) + 2
        if c.SPLIT_K > 1
        else min(ceil_div(all_tiles(c, p), blocks(c, p)), MOST_ROUND)
    )
    return 8 + 2 * 4 * ceil_div(most, 16)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of three barriers a stage and two more, a word a warpgroup where k is split, and marks."""
    last = 8 if c.SPLIT_K > 1 else 0
    return ceil_div(8 * (3 * c.STAGES + 2) + last + marks_bytes(c, p), 16) * 16


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of a counter for each tile and warpgroup, and of two tiles' sums for each block; 0 where k is not split."""
    if c.SPLIT_K == 1:
        return 0
    counters = all_tiles(c, p) * c.CONSUMERS
    return ceil_div(4 * counters, 16) * 16 + 2 * blocks(c, p) * 4 * c.TILE_S * tile_r(c)


def launch(c: Values, p: Problem) -> Launch:
    """A launch of one block for each multiprocessor, or for each piece of work where these are fewer."""
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes(c, p))


def registers_suffice(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether a thread can hold its sums and, with three products, those of the present step."""
    return (c.BLOCKS_R + (1 if c.PRODUCTS == 3 else 0)) * c.TILE_S // 2 <= MOST_SUMS


def k_covers_error(p: Problem, small_bf16: int) -> bool:
    """Whether k is large enough for the error of the split with such small products."""
    return p.shape["k"] * C_BOUND**2 >= ERROR_UNITS[small_bf16] ** 2


def error_stays_within_bound(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether sqrt(k) covers the error of a single product, which may be all that a sum consists of."""
    return k_covers_error(p, c.SMALL_BF16)


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    shared, other = ("m", "n") if c.SHARED_A else ("n", "m")
    return (c.TILE_S <= 16 or p.shape[shared] > c.TILE_S // 2) and (
        c.BLOCKS_R * c.CONSUMERS == 1 or tile_r(c) // 2 < p.shape[other]
    )


def blocks_are_multiprocessors(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether BLOCKS is, of its values, the one nearest to the device's multiprocessors."""
    return nearest_blocks(d) == c.BLOCKS


def nearest_blocks(d: Limits) -> int:
    """The value of BLOCKS that is nearest to the device's number of multiprocessors."""
    return min(BLOCKS.values, key=lambda blocks: abs(blocks - d.multiprocessors))


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether every other multiprocessor has work, or tiles are small already."""
    return 2 * blocks(c, p) >= d.multiprocessors or (c.TILE_S <= SMALL_SHARED and tile_r(c) <= SMALL_REGISTER)


def split_is_of_use(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether each block has some steps, tiles alone leave some blocks idle, and a smaller split gives fewer blocks."""
    if c.SPLIT_K == 1:
        return True
    enough_steps = ceil_div(p.shape["k"], STEP_K) >= FEWEST_STEPS * c.SPLIT_K
    smaller = max(split for split in SPLIT_K.values if split < c.SPLIT_K)
    differs = smaller == 1 or all_tiles(c, p) * smaller < c.BLOCKS
    return enough_steps and differs and all_tiles(c, p) <= MOST_ROUNDS * c.BLOCKS


def ring_is_deepest(c: Values, p: Problem, d: Limits) -> bool:
    """Whether no further stage fits: a block has the multiprocessor to itself, and more stages are never slower."""
    deeper = next((stages for stages in STAGES.values if stages > c.STAGES), None)
    return deeper is None or not ring_fits(Values({**c, "STAGES": deeper}), p, d)


def ring_fits(c: Values, p: Problem, d: Limits) -> bool:
    """Whether the ring fits a block's shared memory."""
    return shared_bytes(c, p) + static_shared_bytes(c, p) <= d.max_shared_bytes


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The start: an operand of few lines whole in shared memory; with few tiles, smaller ones and k split.

    This is the fastest of 46, 67 and 38 configurations for 64, 128 and 32 rows, n and k being 4096 (H100).
    """
    lines, other = sorted((p.shape["m"], p.shape["n"]))
    tile_s = next((tile for tile in TILES_S[3] if tile >= lines), TILES_S[3][-1])
    values = {"TILE_S": tile_s} | ({"SHARED_A": int(p.shape["m"] == lines)} if lines <= tile_s else {})
    whole, blocks = ceil_div(lines, tile_s) * p.shape["batch"], nearest_blocks(d)
    if 2 * whole * ceil_div(other, 2 * SMALL_REGISTER) < blocks:
        consumers = 1 if tile_s <= SMALL_SHARED else 2
        most = min(blocks // (whole * ceil_div(other, 64 * consumers)), ceil_div(p.shape["k"], STEP_K) // FEWEST_STEPS)
        split = max(split for split in SPLIT_K.values if split <= max(most, 1))
        values |= {"CONSUMERS": consumers, "BLOCKS_R": 1, "SPLIT_K": split}
    begun = Values({q.name: q.default for q in parameters(3)} | values)
    fitting = [stages for stages in STAGES.values if ring_fits(Values({**begun, "STAGES": stages}), p, d)]
    return values | {"STAGES": max(fitting, default=STAGES.default)}


def group_matters(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are row tiles to group otherwise than by the default."""
    usual = GROUP_M.default
    return usual == c.GROUP_M or tile_counts(c, p)[0] > min(c.GROUP_M, usual)


TILES_S = {3: (16, 32, 64, 128), 1: (32, 64, 128, 192, 256)}  # by PRODUCTS; sums fill the registers beyond
BLOCKS = choice("BLOCKS", 78, 114, 132, default=132, doc="blocks, one for each multiprocessor: H20, H100 PCIe, H200")
STAGES = choice("STAGES", 2, 3, 4, 5, 6, 8, default=3, doc="buffers of a step in shared memory")
SPLIT_K = choice("SPLIT_K", 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128, doc="blocks that share a tile, at most")
GROUP_M = choice("GROUP_M", 4, 8, 16, default=8, doc="rows of tiles that share columns of B in the L2 cache")
CLUSTER = choice("CLUSTER", 2, doc="blocks side by side that share lines by multicast")


def parameters(products: int) -> tuple[Parameter, ...]:
    """The parameters of the variant with one or three products."""
    small = choice("SMALL_BF16", *((0, 1, 2) if products == 3 else (0,)), doc="how many small products are in BF16")
    return (
        choice("PRODUCTS", products, doc="products of parts that make one product of numbers"),
        BLOCKS,
        choice("SHARED_A", 0, 1, default=1, doc="operand that tensor cores read from shared memory: 1 A, 0 B"),
        choice("TILE_S", *TILES_S[products], default=128, doc="lines of a tile of the operand in shared memory"),
        choice("CONSUMERS", 1, 2, default=2, doc="warpgroups that multiply"),
        choice("BLOCKS_R", 1, 2, default=2, doc="groups of 64 lines of the other operand for each of them"),
        STAGES,
        small,
        SPLIT_K,
        GROUP_M,
    )


CONSTRAINTS = (
    Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors),
    Constraint("registers hold the sums", registers_suffice),
    Constraint("the error stays within the bound", error_stays_within_bound),
    Constraint("lines pair up for BF16", lambda c, _p, _d: c.SMALL_BF16 != 1 or c.TILE_S >= 2 * 16),
    Constraint("no tile of half the size covers the axis", tile_suits_problem),
    Constraint("blocks fill the device", device_is_filled),
    Constraint("splitting k serves the device", split_is_of_use),
    Constraint("the ring is as deep as fits", ring_is_deepest),
    Constraint("groups of row tiles differ", group_matters),
)


def fp32_is_supported(p: Problem) -> bool:
    """Whether the split's error is within the FP32 bound, in float32 and where tensor cores are allowed."""
    return p.dtype == "float32" and p.options["accuracy"] in {"fp32", "tf32"} and k_covers_error(p, 0)


def tf32_is_supported(p: Problem) -> bool:
    """Whether TF32 is asked for, and the constraints on k and tiles leave a configuration for the problem."""
    fills_a_tile = 2 * max(p.shape["m"], p.shape["n"]) > min(TILES_S[1])
    return p.dtype == "float32" and p.options["accuracy"] == "tf32" and k_covers_error(p, 0) and fills_a_tile


TENSOR3XTF32_SM90 = hopper_variant(
    name="tensor3xtf32_sm90",
    doc="FP32 accuracy by three products on Hopper's wgmma; warpgroups specialise in loading or multiplying.",
    source="tensor_sm90.cu",
    launch=launch,
    parameters=parameters(3),
    constraints=CONSTRAINTS,
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    supports=fp32_is_supported,
    start=start,
)

TENSOR1XTF32_SM90 = replace(
    TENSOR3XTF32_SM90,
    name="tensor1xtf32_sm90",
    doc="TF32 products on Hopper's wgmma, for accuracy=tf32; warpgroups specialise in loading or multiplying.",
    parameters=parameters(1),
    supports=tf32_is_supported,
    start=no_start,
)


def multicast_is_supported(p: Problem) -> bool:
    """Whether TF32 is asked for, and the problem has two of the smallest tiles beside lines that can be sent."""
    beside = {"a": "n", "b": "m"}
    return tf32_is_supported(p) and any(can_be_sent(p, x) and p.shape[axis] > 64 for x, axis in beside.items())


TENSOR1XTF32_MULTICAST_SM90 = replace(
    TENSOR1XTF32_SM90,
    name="tensor1xtf32_multicast_sm90",
    doc="TF32 products on Hopper's wgmma, for accuracy=tf32; TMA multicasts shared lines to two blocks.",
    source="tensor_multicast_sm90.cu",
    parameters=(*(choice(q.name, 1, doc=q.doc) if q is SPLIT_K else q for q in parameters(1)), CLUSTER),
    constraints=(*CONSTRAINTS, Constraint("lines can be sent to a whole cluster", lines_can_be_sent)),
    workspace_bytes=no_workspace,
    tensor_maps=tensor_maps,
    supports=multicast_is_supported,
)
