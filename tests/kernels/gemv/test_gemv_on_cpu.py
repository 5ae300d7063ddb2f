"""gemv's sources, run for real on the CPU device."""

import dataclasses
import itertools
import random
import zlib

import pytest
from contracts.launches_on_host import SANITIZING, checked
from faulty_kernels import with_change
from sampling import EXHAUSTIVE, sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.verify import C_DEFAULT

GEMV = catalogue().get("gemv")
SHAPES = [(1, 1), (1, 1025), (1025, 1), (37, 53), (6, 2047), (2047, 6), (100, 784)]
ROWS_SPLIT = Configuration.of(
    "split", {"BLOCK": 128, "THREADS_PER_ROW": 128, "ROWS": 2, "VECTOR_WIDTH": 4, "UNROLL": 1, "SPLIT": 4}
)
TERMS_SPLIT = Configuration.of(
    "columns", {"COLUMN_THREADS": 16, "SLICES": 4, "VECTOR_WIDTH": 1, "UNROLL": 2, "SPLIT": 4}
)


@pytest.fixture(scope="module")
def limits(device):
    """As many multiprocessors as a GPU has, so that splitting is worth a trial."""
    return dataclasses.replace(device.model.limits, multiprocessors=132)


def problem_of(shape, dtype="float32", **options):
    return GEMV.problem(dict(zip("mn", shape, strict=True)), dtype, options)


def verified(device, problem, *configurations, kernel=GEMV):
    bench = device.bench(kernel, problem, seed=5)
    try:
        return [bench.verify(bench.compile(configuration)) for configuration in configurations]
    finally:
        bench.close()


USUAL = [((1, 1), False), ((1, 1025), True), ((37, 53), False), ((6, 2047), True), ((100, 784), False)]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("shape", "trans_a"), sampled(itertools.product(SHAPES, (False, True)), lambda *case: case in USUAL)
)
def test_every_variant_is_right_in_every_shape(device, limits, shape, trans_a):
    """One random configuration of each variant that serves the problem; dtype and beta take turns."""
    draw = random.Random(zlib.crc32(repr((shape, trans_a)).encode()))
    problem = problem_of(shape, draw.choice(GEMV.dtypes), trans_a=trans_a, beta_zero=draw.random() < 0.5)
    names = [variant.name for variant in GEMV.usable_variants(problem, limits)]
    assert ("columns" in names) is trans_a
    assert ("split" in names) is (not trans_a or 1 in shape)
    chosen = [draw.choice(GEMV.space(problem, limits, [name]).feasible) for name in names]
    for configuration, found in zip(chosen, verified(device, problem, *chosen), strict=True):
        assert found.wrong == 0, configuration
        assert found.bound_ratio < C_DEFAULT


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("beta_zero", [False, True])
@pytest.mark.parametrize(
    ("configuration", "shape", "trans_a"), [(ROWS_SPLIT, (13, 2047), False), (TERMS_SPLIT, (13, 501), True)]
)
def test_split_work_is_right_in_both_dtypes(device, limits, configuration, shape, trans_a, beta_zero):
    """Verification launches twice, and the second launch finds the counters as the first has left them."""
    problem = problem_of(shape, trans_a=trans_a, beta_zero=beta_zero)
    assert configuration in GEMV.space(problem, limits, [configuration.variant])
    for dtype in GEMV.dtypes:
        (found,) = verified(device, dataclasses.replace(problem, dtype=dtype), configuration)
        assert found.wrong == 0


@SANITIZING
@pytest.mark.parametrize("mode", ["address", pytest.param("thread", marks=EXHAUSTIVE)])
@pytest.mark.parametrize(
    ("configuration", "shape", "trans_a"), [(ROWS_SPLIT, (13, 2047), False), (TERMS_SPLIT, (13, 501), True)]
)
def test_split_work_is_clean_under_sanitizers(device, configuration, shape, trans_a, mode):
    bench = device.bench(GEMV, problem_of(shape, trans_a=trans_a), seed=5)
    report = checked(bench, configuration, mode)
    bench.close()
    assert report.is_clean, report.log


@pytest.mark.parametrize(
    ("configuration", "file", "text", "bug"),
    [
        # Left at SPLIT, the counters make no block the last of the second launch.
        (ROWS_SPLIT, "../common/split.cuh", "atomicInc(reinterpret_cast<unsigned*>(start) + group, parts - 1)",
         "atomicAdd(reinterpret_cast<unsigned*>(start) + group, 1u)"),
        (ROWS_SPLIT, "../common/split.cuh", "part < PARTS;", "part < PARTS - 1;"),
        (ROWS_SPLIT, "split.cu", "thread : thread + vectors * VECTOR_WIDTH", "thread : thread + vectors"),
        (ROWS_SPLIT, "split.cu", "block / PHASES * (ROWS * STRIDE)", "block / PHASES * ROWS"),
        (TERMS_SPLIT, "columns.cu", "N - begin < PART ? N", "N - begin < PART ? N - 1"),
        (TERMS_SPLIT, "columns.cu", "distance >= COLUMN_THREADS", "distance > COLUMN_THREADS"),
    ],
)  # fmt: skip
def test_a_bug_is_found(device, tmp_path, configuration, file, text, bug):
    """The verification that tuning runs sees what one changed line does."""
    broken = with_change(GEMV, tmp_path, file, text, bug)
    problem = problem_of((13, 2047), trans_a=configuration is TERMS_SPLIT)
    (found,) = verified(device, problem, configuration, kernel=broken)
    assert found.wrong > 0


def test_columns_default_suits_transposed_examples(limits):
    problem = GEMV.problem(GEMV.example_shape, options={"trans_a": True})
    space = GEMV.space(problem, limits)
    assert GEMV.default_configuration(space) == GEMV.variant("columns").space().default()


def test_the_space_stays_searchable(limits):
    for shape, trans_a in itertools.product([(4095, 8191), (16, 65536)], (False, True)):
        assert 50 < len(GEMV.space(problem_of(shape, trans_a=trans_a), limits)) < 1500


def test_rows_are_split_while_blocks_are_scarce(limits):
    def largest_split(m):
        return max(c.values.SPLIT for c in GEMV.space(problem_of((m, 1 << 20)), limits, ["split"]).feasible)

    assert [largest_split(m) for m in (1, 100_000)] == [256, 1]


def test_a_workspace_that_takes_the_memory_is_out_of_the_space(limits):
    problem = problem_of((16, 65536))
    small = dataclasses.replace(limits, memory_bytes=1 << 13)
    left = GEMV.space(problem, small, ["split"]).feasible
    assert {c.values.SPLIT for c in left} < {c.values.SPLIT for c in GEMV.space(problem, limits, ["split"]).feasible}
    assert all(GEMV.variant("split").workspace_bytes(c.values, problem) <= small.memory_bytes // 64 for c in left)


def test_the_library_transposes(device):
    bench = device.bench(GEMV, problem_of((64, 96), trans_a=True), seed=3)
    library = bench.library()
    if library is None:
        pytest.skip("NumPy here does not carry OpenBLAS")
    assert all(sample > 0 for sample in bench.sample(library, "warm", 2))
    bench.close()
