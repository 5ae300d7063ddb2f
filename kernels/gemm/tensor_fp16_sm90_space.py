"""gemm's variant of FP16 parts on the tensor cores of compute capability 9.0: two launches and their workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tilewright.kernels.gemm.layout import counters_fit, fastest_tile, row_divisors, takes_rows
from tilewright.kernels.kernel import Launch, Preparation, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two
from tilewright.kernels.variant import SHARED_COUNTER_BYTES, hopper_variant

STEP_K = 32  # 64 bytes of a line in FP16
STEP_CHUNKS = 4  # of eight numbers, in a step
GROUP = 8  # lines that the tensor cores' swizzle spans
MULTIPLIERS = 2  # warpgroups of a block that multiply; one more loads
FINE_PARTS, WIDE_PARTS = 2, 3  # of each number, in FP16 and in BF16
MOST_SHARED = 227 * 1024 - 2048  # of a block, less alignment and barriers
MOST_STAGES = 8
ALIGNMENT = 1024  # of the ring; more than the swizzle needs
STAGED_WARP = 16 * 40 * 4  # bytes of a warp that pass through shared memory
FEWEST_STAGES = 5  # beside these, where they could do without
SURVEY_THREADS = PACK_THREADS = 256
STRIP = 128  # lines that a block surveys where they are neither contiguous nor short
MOST_CHUNKS = 32  # blocks that share a strip
MOST_CHUNKS_HELD = 8  # of a thread: what makes a line short
SHORT_STRIP = 32  # of these, where they are short and aligned, or more where k is short; else half as many
STRIP_STEPS = 8  # of k that each block of a cluster has of such a strip, or more
WORKSPACE_PART = 32  # of the device's memory: 16384 cubed takes 3.2 GB, as much as its matrices
MOST_BEYOND = 2 * 256 * 192  # bytes behind an operand that a tile may read
MOST_ROWS_AT_ONCE = 2048  # where the launch says the rows: a workspace is then 6 k (n + 2048) bytes and little else
FEWEST_K = 64  # of 31 some sums of numbers of moderate span are 2.4 bounds off
PROMOTED_SQUARED = 32  # of k: how large PROMOTE_K squared may be
SMALL_TILE = 64  # columns of a tile that may leave multiprocessors idle
MOST_COLUMNS_SHARED = 176  # of a tile of 64 rows: wider ones have too few stages in BF16
FEWEST_STEPS = 4  # of a part of a tile
LOAD_COST = 4  # of a row or column of a tile, in products: gives 12 of 13 tiles that won searches on an H200


def stage_bytes(c: Values) -> int:
    """A step of both operands in FP16."""
    return (c.TILE_M + c.TILE_N) * STEP_K * 2 * FINE_PARTS


def final_bytes(c: Values) -> int:
    """Bytes of the sums that a block finishes: of tiles with 64 rows, each warpgroup has half the columns."""
    return MULTIPLIERS * ceil_div(c.TILE_N // 8, 2 if c.TILE_M == SMALL_TILE else 1) * 128 * 16


def exchanged_bytes(c: Values) -> int:
    """Bytes that warpgroups exchange where they share rows."""
    return final_bytes(c) if c.TILE_M == SMALL_TILE else 0


def staged_bytes(c: Values, p: Problem) -> int:
    """Bytes through which warps store whole rows of sums: always for rows of odd length, else where they fit."""
    staged, divisor = 4 * MULTIPLIERS * STAGED_WARP, row_divisors(p)[2]
    fits = c.TILE_M != SMALL_TILE and staged + FEWEST_STAGES * stage_bytes(c) <= MOST_SHARED
    return staged if divisor % 2 or (divisor % 4 == 0 and fits) else 0


def stages(c: Values, p: Problem) -> int:
    """Buffers of a step in shared memory: as many as fit."""
    return min(MOST_STAGES, (MOST_SHARED - exchanged_bytes(c) - staged_bytes(c, p)) // stage_bytes(c))


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the ring and its alignment, of the exchange, and of the buffers that sums pass through."""
    return stages(c, p) * stage_bytes(c) + exchanged_bytes(c) + staged_bytes(c, p) + ALIGNMENT


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of two barriers a stage and, where tiles are shared, of a word a warpgroup for the last block."""
    return ceil_div(16 * stages(c, p) + (4 * MULTIPLIERS if c.SPLIT_K > 1 else 0), 16) * 16


def clusters(c: Values, p: Problem) -> int:
    """How many tiles of a whole cluster cover every C of the batch."""
    return p.shape["batch"] * ceil_div(p.shape["m"], c.TILE_M * c.CLUSTER) * ceil_div(p.shape["n"], c.TILE_N)


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the last launch: whole clusters."""
    return min(c.BLOCKS // c.CLUSTER, clusters(c, p) * c.SPLIT_K) * c.CLUSTER


@dataclass(frozen=True)
class Operand:
    """`matrices` of them, each `lines` lines, along which sums run, of `k` numbers.

    `is_aligned`: 16 bytes of a stored row are one load.
    """

    lines: int
    k: int
    is_contiguous: bool
    is_aligned: bool
    matrices: int = 1

    @property
    def groups(self) -> int:
        """Groups of lines, over all matrices."""
        return self.matrices * ceil_div(self.lines, GROUP)

    @property
    def strips(self) -> int:
        """Strips of lines, over all matrices."""
        return self.matrices * ceil_div(self.lines, STRIP)

    @property
    def steps(self) -> int:
        """Steps along one line."""
        return ceil_div(self.k, STEP_K)

    @property
    def line_threads(self) -> int:
        """Threads that share a short contiguous line."""
        return next((threads for threads in (8, 16, 32, 64, 128) if self.k <= 32 * threads), 256)

    @property
    def strip_cluster(self) -> int:
        """Blocks that share short lines that are not contiguous."""
        return next((blocks for blocks in (1, 2, 4) if self.steps <= blocks * STRIP_STEPS), 8)

    @property
    def strip_lines(self) -> int:
        """Lines of a block that are short and not contiguous."""
        most = SHORT_STRIP * (4 if self.steps <= 2 else 2 if self.steps <= 4 else 1)
        return most if self.is_aligned and self.steps <= 128 else min(most // 2, SHORT_STRIP)

    @property
    def is_short(self) -> bool:
        """Whether the first launch packs the operand at once, from the registers of a block or of a cluster."""
        if self.is_contiguous:
            return ceil_div(self.steps * STEP_CHUNKS, self.line_threads) <= MOST_CHUNKS_HELD
        width = 4 if self.is_aligned else 1
        stride = SURVEY_THREADS * width // self.strip_lines * self.strip_cluster
        return width * ceil_div(self.steps * STEP_CHUNKS, stride) <= MOST_CHUNKS_HELD

    @property
    def chunks(self) -> int:
        """Blocks that share a strip of lines."""
        return ceil_div(self.k, ceil_div(ceil_div(self.k, MOST_CHUNKS), 8) * 8)

    @property
    def survey_blocks(self) -> int:
        """Blocks of the first launch, before they are rounded up to whole clusters."""
        groups = ceil_div(self.lines, GROUP)
        if self.is_short and self.is_contiguous:
            return self.matrices * ceil_div(groups * GROUP, SURVEY_THREADS // self.line_threads)
        if self.is_short:
            return self.matrices * ceil_div(groups * GROUP, self.strip_lines) * self.strip_cluster
        return self.matrices * self.lines if self.is_contiguous else self.strips * self.chunks

    @property
    def pack_blocks(self) -> int:
        """Blocks of a launch that packs it."""
        return ceil_div(self.groups * self.steps, PACK_THREADS // 32)

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partial results that blocks leave for one another where they share a strip."""
        return 0 if self.is_contiguous else aligned(16 * self.matrices * self.lines * self.chunks)

    def packed_bytes(self, parts: int) -> int:
        """All parts, and what a tile that juts out may read behind them."""
        group = GROUP * STEP_K * 2 * parts
        return aligned(self.steps * self.groups * group + MOST_BEYOND)


def aligned(size: int) -> int:
    """The next multiple of 256."""
    return ceil_div(size, 256) * 256


@lru_cache(maxsize=64)
def operands(p: Problem) -> tuple[Operand, Operand]:
    """A and B as lines along k, with their alignment."""
    k, batch = p.shape["k"], p.shape["batch"]
    matrices_a, matrices_b = (batch if p.shape[f"stride_{x}"] else 1 for x in "ab")
    aligned_a, aligned_b = (divisor % 4 == 0 for divisor in row_divisors(p)[:2])
    return (
        Operand(p.shape["m"], k, not p.options["trans_a"], aligned_a, matrices_a),
        Operand(p.shape["n"], k, bool(p.options["trans_b"]), aligned_b, matrices_b),
    )


def launch(c: Values, p: Problem) -> Launch:
    """A launch of one block for each multiprocessor, or for each piece of work where these are fewer."""
    return Launch((blocks(c, p), 1, 1), (128 * (MULTIPLIERS + 1), 1, 1), shared_bytes(c, p), overlaps=True)


def launch_survey(_c: Values | None, p: Problem) -> Launch:
    """A launch that surveys both operands, in whole clusters where some lines are a cluster's; not a packed B."""
    a, b = operands(p)
    return _launch_survey((a,) if p.options["packed_b"] else (a, b))


def launch_keep_survey(_c: Values, p: Problem) -> Launch:
    """A launch that surveys B alone, to pack it ahead."""
    return _launch_survey(operands(p)[1:])


@lru_cache(maxsize=64)
def _launch_survey(some: tuple[Operand, ...]) -> Launch:
    cluster = max(o.strip_cluster if o.is_short and not o.is_contiguous else 1 for o in some)
    return Launch((sum(ceil_div(o.survey_blocks, cluster) * cluster for o in some), 1, 1), (SURVEY_THREADS, 1, 1))


def launch_keep_pack(_c: Values, p: Problem) -> Launch:
    """A launch of a warp for eight lines of B and a step; of none where the survey packed B already."""
    b = operands(p)[1]
    return Launch((1 if b.is_short else b.pack_blocks, 1, 1), (PACK_THREADS, 1, 1))


def kept_bytes(p: Problem) -> int:
    """Bytes kept of a B that is packed ahead: its summary, scales and FP16 parts."""
    b = operands(p)[1]
    return 256 + aligned(4 * b.matrices * b.lines) + b.packed_bytes(FINE_PARTS) if p.options["packed_b"] else 0


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of the lines' summaries, of both operands in three parts, and of tiles that blocks share."""
    shared = 0
    if c.SPLIT_K > 1:
        counted = 0 if p.at_launch else ceil_div(4 * counters(c, p), 16) * 16
        shared = counted + 2 * blocks(c, p) * final_bytes(c)
    return _workspace_bytes(p) + shared


def counters(c: Values, p: Problem) -> int:
    """Counters of tiles that are shared, one a warpgroup."""
    return clusters(c, p) * c.CLUSTER * MULTIPLIERS


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether counters of strips and of shared tiles have room, and steps can be counted, for any number of rows."""
    return c.SPLIT_K == 1 or (steps_are_countable(c, p) and counters_fit(2 * counters(c, p)))  # strips: the other half


def steps_are_countable(c: Values, p: Problem) -> bool:
    """Whether 32 bits number all steps of all tiles."""
    return clusters(c, p) * ceil_div(p.shape["k"], STEP_K) < 2**32


@lru_cache(maxsize=64)
def _workspace_bytes(p: Problem) -> int:
    both = operands(p)
    counted = SHARED_COUNTER_BYTES if p.at_launch else 256 + aligned(4 * sum(o.strips for o in both))
    known = counted + sum(aligned(4 * o.matrices * o.lines) for o in both)
    return known + sum(o.partial_bytes + o.packed_bytes(WIDE_PARTS) for o in both)


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile would cover n as well."""
    smaller = [tile for tile in TILE_N.values if tile < c.TILE_N]
    return not smaller or p.shape["n"] > smaller[-1]


def promotes_often_enough(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether the tensor cores add up no more products than the bound admits of what they cut off.

    For uniform inputs the error is 0.131 PROMOTE_K / sqrt(k) bounds, as measured; 0.75 are let pass.
    """
    return PROMOTED_SQUARED * p.shape["k"] >= c.PROMOTE_K**2


def promotes_no_sooner(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether PROMOTE_K is one of the two largest steps that the bound admits: smaller ones only cost time."""
    return PROMOTED_SQUARED * p.shape["k"] < (4 * c.PROMOTE_K) ** 2 or PROMOTE_K.values[-2] <= c.PROMOTE_K


def blocks_are_multiprocessors(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether BLOCKS is, of its values, the one nearest to the device's multiprocessors."""
    return min(BLOCKS.values, key=lambda count: abs(count - d.multiprocessors)) == c.BLOCKS


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether every other multiprocessor has work, or tiles are small already."""
    return 2 * blocks(c, p) >= d.multiprocessors or (c.TILE_N == SMALL_TILE == c.TILE_M and c.CLUSTER == 1)


def group_matters(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are row tiles to group otherwise than by the default."""
    return GROUP_M.default == c.GROUP_M or ceil_div(p.shape["m"], c.TILE_M * c.CLUSTER) > min(
        c.GROUP_M, GROUP_M.default
    )


def split_is_of_use(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether parts have some steps, tiles alone leave multiprocessors idle, and a smaller split gives fewer blocks."""
    if c.SPLIT_K == 1:
        return True
    whole = clusters(c, p)
    teams = c.BLOCKS // c.CLUSTER
    enough_steps = ceil_div(p.shape["k"], STEP_K) >= FEWEST_STEPS * c.SPLIT_K
    smaller = max(split for split in SPLIT_K.values if split < c.SPLIT_K)
    return enough_steps and steps_are_countable(c, p) and whole * smaller < teams * (2 if smaller == 1 else 1)


def rows_suit_problem(c: Values, p: Problem, d: Limits) -> bool:
    """Whether tiles of 64 rows are needed: for few rows, or to give more multiprocessors work."""
    if p.shape["m"] <= SMALL_TILE:
        return c.TILE_M == SMALL_TILE
    return c.TILE_M != SMALL_TILE or clusters(c, p) <= 2 * d.multiprocessors


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The tile that takes the least time by estimate."""
    sizes = ((m, n) for m, n in product(TILE_M.values, TILE_N.values) if m != SMALL_TILE or n <= MOST_COLUMNS_SHARED)
    tile_m, tile_n = fastest_tile(p, d, sizes, LOAD_COST)
    return {"TILE_M": tile_m, "TILE_N": tile_n}


def stages_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether two warpgroups that share rows have two stages each in BF16: one is released when the next has begun."""
    return c.TILE_M != SMALL_TILE or stages(c, p) * FINE_PARTS // WIDE_PARTS >= 2 * MULTIPLIERS


def is_supported(p: Problem) -> bool:
    """Whether FP32's bound is asked for, in float32, of sums long enough for what the tensor cores cut off."""
    return p.dtype == "float32" and p.options["accuracy"] == "fp32" and p.shape["k"] >= FEWEST_K


def has_room(p: Problem, d: Limits) -> bool:
    """Whether the least workspace, the ring in shared memory and the survey's grid fit the device."""
    fits = d.max_shared_bytes >= MOST_SHARED + 2048 and _workspace_bytes(p) <= d.memory_bytes // WORKSPACE_PART
    return fits and launch_survey(None, p).grid[0] <= d.max_grid[0]


BLOCKS = choice("BLOCKS", 78, 114, 132, default=132, doc="blocks, one for each multiprocessor: H20, H100 PCIe, H200")
TILE_M = choice("TILE_M", 64, 128, default=128, doc="rows of C that a block computes")
TILE_N = choice(
    "TILE_N", 64, 72, 96, 128, 144, 160, 176, 192, 208, default=128, doc="columns of C that a block computes"
)
CLUSTER = choice("CLUSTER", 1, 2, default=1, doc="blocks with tiles one below the other that share columns of B")
PROMOTE_K = powers_of_two("PROMOTE_K", 32, 512, default=256, doc="products between additions to FP32 registers")
SPLIT_K = choice("SPLIT_K", 1, 2, 3, 4, 6, 8, 16, default=1, doc="blocks that share a tile, at most")
GROUP_M = choice("GROUP_M", 4, 8, 16, default=8, doc="rows of tiles that share columns of B in the L2 cache")

TENSOR3XFP16_SM90 = hopper_variant(
    name="tensor3xfp16_sm90",
    doc="FP32 accuracy by FP16 parts on Hopper's wgmma, in two launches: the first packs both operands.",
    source="tensor_fp16_sm90.cu",
    launch=launch,
    before=(Preparation("survey", launch_survey, is_shared=True),),
    packing=(
        Preparation("keep_survey", launch_keep_survey, is_shared=True),
        Preparation("keep_pack", launch_keep_pack, is_shared=True),
    ),
    kept_bytes=kept_bytes,
    parameters=(BLOCKS, TILE_M, TILE_N, CLUSTER, SPLIT_K, PROMOTE_K, GROUP_M),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors, is_thrift=True),
        Constraint(
            "a cluster has rows for all its blocks",
            lambda c, p, _d: c.CLUSTER == 1 or p.shape["m"] > c.TILE_M,
            is_thrift=True,
        ),
        Constraint("no smaller tile covers the axis", tile_suits_problem, is_thrift=True),
        Constraint("sums are promoted often enough", promotes_often_enough),
        Constraint("sums are promoted no sooner", promotes_no_sooner, is_thrift=True),
        Constraint("blocks fill the device", device_is_filled, is_thrift=True),
        Constraint("rows of a tile suit the axis", rows_suit_problem, is_thrift=True),
        Constraint("two warpgroups of the same rows have stages enough", stages_suffice),
        Constraint("a split gives more blocks work", split_is_of_use, is_thrift=True),
        Constraint("groups of row tiles differ", group_matters, is_thrift=True),
    ),
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    takes_size=takes_rows,
    most_at_once=MOST_ROWS_AT_ONCE,
    is_sound_at_launch=is_sound_at_launch,
    workspace_share=WORKSPACE_PART,
    supports=is_supported,
    has_room=has_room,
    start=start,
)
