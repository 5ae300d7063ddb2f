"""What follows from measured numbers, bytes by prediction, and contestants in turn."""

from __future__ import annotations

import math

import made_recordings as made
import pytest
from contracts.variant import H200
from hypothesis import given
from hypothesis import strategies as st
from made_ladder import STEPS, made_report, moves_of, time_of, work_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.report.rows import (
    StepRow,
    SweepRow,
    Work,
    crossing,
    fastest_sizes,
    percent,
    ratios,
)
from tilewright.tuner.report.traffic import predicted_bytes, tile_of
from tilewright.tuner.report.turns import LIBRARY, BrokenStepError, times

positive = st.floats(1e-6, 1e9)
exponents = st.floats(-1.0, 4.0)


def row(median_ms: float, *, flops: int = 10**9, bytes_moved: int = 10**8, **rest: object) -> StepRow:
    return StepRow("a", "a", "device", "float32", {}, Work(flops, bytes_moved), "", time=time_of(median_ms), **rest)


@given(positive, st.integers(1, 10**15), st.integers(1, 10**12), positive)
def test_rates_times_time_are_the_work(median_ms, flops, bytes_moved, peak):
    found = row(median_ms, flops=flops, bytes_moved=bytes_moved, peak_gflops=peak)
    assert found.gflops * median_ms * 1e6 == pytest.approx(flops)
    assert found.gb_per_s * median_ms * 1e6 == pytest.approx(bytes_moved)
    assert found.percent_of_peak / 100 * peak == pytest.approx(found.gflops)


@given(positive, st.integers(1, 20000))
def test_transfers_come_on_top_of_the_time(median_ms, size):
    moved = SweepRow(size, "a", work_of(size), time_of(median_ms), None, "", moves_of(size))
    assert moved.with_transfers_ms == pytest.approx(median_ms + moves_of(size).to_device_ms + moves_of(size).to_host_ms)
    assert moved.gflops_with_transfers <= moved.gflops
    on_host = SweepRow(size, "a", work_of(size), time_of(median_ms), None)
    assert on_host.with_transfers_ms == median_ms


def test_a_device_step_whose_transfers_are_unknown_has_no_time_with_them():
    assert row(1.0).with_transfers_ms is None
    assert row(1.0, moves=moves_of(8)).with_transfers_ms > 1.0


@given(st.integers(1, 256))
def test_square_tiles_need_one_part_in_their_width(width):
    assert row(1.0, tile=(width, width)).predicted_share == pytest.approx(1 / width)


def test_unknown_parts_are_unknown():
    assert percent(None, 3.0) is None
    assert percent(3.0, None) is None
    assert percent(3.0, 0.0) is None
    left_out = StepRow("a", "a", "device", "float32", {}, Work(1, 1), "", left_out="for a reason", peak_gflops=1.0)
    assert (left_out.gflops, left_out.gb_per_s, left_out.percent_of_peak, left_out.with_transfers_ms) == (None,) * 4


@given(positive, exponents, positive, exponents, st.lists(st.integers(1, 20000), min_size=2, max_size=9, unique=True))
def test_curves_that_follow_powers_cross_where_they_are_equal(a, power_a, b, power_b, sizes):
    sizes.sort()
    first = [(float(size), a * size**power_a) for size in sizes]
    second = [(float(size), b * size**power_b) for size in sizes]
    at = crossing(first, second)
    ahead = [one < other for (_, one), (_, other) in zip(first, second, strict=True)]
    if not ahead[-1]:
        assert at is None
    elif all(ahead):
        assert at == sizes[0]
    else:
        assert a * at**power_a == pytest.approx(b * at**power_b, rel=1e-6)
        assert max(size for size, won in zip(sizes, ahead, strict=True) if not won) <= at * (1 + 1e-9)
        assert at <= sizes[-1] * (1 + 1e-9)


def test_a_lead_that_is_lost_again_does_not_count():
    sizes = (2.0, 4.0, 8.0, 16.0)
    first = list(zip(sizes, (1, 3, 3, 1), strict=True))
    second = list(zip(sizes, (2, 2, 2, 2), strict=True))
    assert 8 < crossing(first, second) < 16
    assert crossing([(2.0, 1.0)], [(4.0, 1.0)]) is None  # no size in common


def test_ratios_and_fastest_go_by_size():
    report = made_report()
    assert ratios(report, "naive", "tiled") == [(size, 2.0) for size in (2, 16, 128, 1024)]
    assert ratios(report, "naive", "absent") == []
    fastest = dict(fastest_sizes(report, ["naive", "library"], transfers=False))
    assert fastest[1024] == STEPS["library"][2]
    with_transfers = dict(fastest_sizes(report, ["naive", "library"], transfers=True))
    assert all(with_transfers[size] > fastest[size] for size in fastest)


def problem(kernel="gemm", size=1024, dtype="float32"):
    return catalogue().get(kernel).problem({"m": size, "n": size, "k": size}, dtype)


@pytest.mark.parametrize("kernel", ["gemm", "linear"])
def test_tiles_are_those_that_the_launch_covers_the_output_with(kernel):
    """As many blocks as tiles wherever a block computes one whole tile."""
    declared, asked = catalogue().get(kernel), problem(kernel, size=4096)
    looked_at = set()
    for name in ("tiled", "wpt", "wpt_strided", "register", "tensor3xtf32"):
        if name not in {variant.name for variant in declared.variants}:
            continue
        variant = declared.variant(name)
        for configuration in list(declared.space(asked, H200, [name]).feasible)[::97]:
            values = configuration.values
            if values.get("SPLIT_K", 1) != 1 or values.get("SHARE_K", 128) != 128:
                continue
            tile_m, tile_n = tile_of(configuration)
            tiles = math.ceil(4096 / tile_m) * math.ceil(4096 / tile_n)
            assert math.prod(variant.launch(values, asked).grid) == tiles, configuration
            looked_at.add(name)
    assert len(looked_at) >= 4


def test_the_tile_of_tensor_cores_on_hopper_follows_the_operand_in_shared_memory():
    values = {"BLOCKS_R": 2, "CONSUMERS": 2, "TILE_S": 128}
    one, other = (tile_of(Configuration.of("tensor3xtf32_sm90", values | {"SHARED_A": shared})) for shared in (1, 0))
    assert one == (128, 256)
    assert other == (256, 128)


def test_square_tiles_ask_for_one_part_in_their_width():
    asked = problem()
    whole = predicted_bytes(asked, (1, 1))
    assert whole == 2 * 1024**3 * 4
    assert predicted_bytes(asked, (32, 32)) == whole / 32
    assert predicted_bytes(problem(dtype="float64"), (1, 1)) == 2 * whole


TILED = Configuration.of("v", {"TILE": 1})


class BenchOfABadLibrary(made.BenchWithLibrary):
    sticky_library = False

    def library(self):
        raise TrialFailure(Outcome.TIMED_OUT, "no answer", sticky=self.sticky_library)


@pytest.fixture
def bench():
    return BenchOfABadLibrary(made.of({TILED: made.entry(1.0)}, v=[("TILE", (1,))]))


def test_a_library_that_fails_is_left_out_with_its_reason_and_the_others_are_timed(bench):
    found = times(bench, {"tiled": TILED}, "warm", MeasurementPlan(), library=True)
    assert found[LIBRARY].left_out == "timed_out: no answer"
    assert found["tiled"].time.median_ms == pytest.approx(1.0, rel=0.02)


def test_a_library_that_breaks_the_context_ends_the_report(bench):
    bench.sticky_library = True
    with pytest.raises(BrokenStepError, match="no answer"):
        times(bench, {"tiled": TILED}, "warm", MeasurementPlan(), library=True)
