"""Families tuned on the CPU device, and ranges that cover an axis: complete, few, and as cheap as any."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.known_models import known_model
from tilewright.tuner.families.cover import MOST_RANGES, NO_GAIN, NoCoverError, Span, cover, mean_loss, serving
from tilewright.tuner.families.limits import FamilyBudget
from tilewright.tuner.families.proposals import RESHAPED, Proposals, shipped_records
from tilewright.tuner.families.representative import GROWTH, between, inside, middle, spread
from tilewright.tuner.families.table import Measured, Table
from tilewright.tuner.families.tune import tune_family
from tilewright.tuner.outcome import ALL_KINDS, KindsPart
from tilewright.tuner.runtime.any_size.ranges import is_sound_within
from tilewright.tuner.runtime.any_size.tables import ranges_of
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.runtime import Runtime

GEMM = catalogue().get("gemm")
FAMILY = Family.of(GEMM, {"m": (1, 20), "n": 24, "k": 40})


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    device = CpuDevice()
    yield tune_family(device, GEMM, FAMILY, FamilyBudget(seconds=None, trials=1, sizes=3), seed=1)
    device.close()


@pytest.mark.in_turn(2)
def test_ranges_cover_the_axis_and_were_verified_at_their_ends(table: Table) -> None:
    assert table.spans[0].low == 1
    assert table.spans[-1].high == 20
    assert len(table.spans) <= MOST_RANGES
    for number, span in enumerate(table.spans):
        assert {span.low, span.high} <= set(table.verified[number])
        assert all(span.low <= size <= span.high for size in table.verified[number])


def test_a_configuration_is_one_compilation_for_all_sizes(table: Table) -> None:
    assert len(table.sizes) >= 3
    assert len(table.times) <= table.compilations < table.trials


def test_the_table_says_what_it_rests_on(table: Table) -> None:
    document = json.loads(json.dumps(table.as_json(GEMM)))
    assert document["family_hash"] == FAMILY.hash
    assert document["shape"] == {"m": "1..20", "n": 24, "k": 40}
    assert document["loss"]["largest"] >= document["loss"]["mean"] >= 0
    assert [one["size"] for one in document["measured"]] == table.sizes
    assert all(one["time_ms"] >= one["best_ms"] for one in document["measured"])
    timed = [one["library_ms"] for one in document["measured"] if one["library_ms"] is not None]
    assert len(timed) >= 3
    assert all(library_ms > 0 for library_ms in timed)


def test_launchers_use_the_table_and_nothing_else(table: Table, tmp_path: Path) -> None:
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"), shipped_records=False)
    runtime.tables.put(FAMILY, table.device_model, table.as_json(GEMM))
    launch = runtime.best("gemm", n=24, k=40, device="cpu")
    found = launch.ranges()
    assert [one.choice.configuration for one in found.ranges] == [span.configuration for span in table.spans]
    assert {one.choice.match for one in found.ranges} == {"range"}
    for m in (1, 5, 20, 300):
        a, b = np.ones((m, 40), np.float32), np.ones((40, 24), np.float32)
        np.testing.assert_array_equal(launch(a, b, np.empty((m, 24), np.float32)), np.full((m, 24), 40, np.float32))


def test_one_configuration_serves_rows_that_must_not_depend_on_each_other() -> None:
    device, family = CpuDevice(), Family.of(GEMM, {"m": (1, 9), "n": 24, "k": 40}, batch_invariant=True)
    table = tune_family(device, GEMM, family, FamilyBudget(seconds=None, trials=2, sizes=2), seed=1)
    device.close()
    assert len(table.spans) == 1
    assert family.admits(GEMM, table.spans[0].configuration)
    assert ranges_of(json.loads(json.dumps(table.as_json(GEMM))), GEMM, family, host_place()) is not None


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "change",
    [
        {"format": "tilewright-table/0"},
        {"family_hash": "0"},
        {"ranges": []},
        {"ranges": [{"high": 20, "variant": "naive", "configuration": {"BLOCK_X": 31}, "source_hash": ""}]},
    ],
    ids=["another version's", "another family's", "empty", "of another source"],
)
def test_a_table_that_does_not_fit_is_not_used(table: Table, change: dict[str, object]) -> None:
    document = json.loads(json.dumps(table.as_json(GEMM)))
    assert ranges_of(document, GEMM, FAMILY, host_place()) is not None
    assert ranges_of(document | change, GEMM, FAMILY, host_place()) is None


def test_a_table_is_superseded_as_a_whole(table: Table, tmp_path: Path) -> None:
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"))
    runtime.tables.put(FAMILY, table.device_model, table.as_json(GEMM))
    last = table.spans[-1]
    one = replace(table, spans=(replace(last, low=1),), times={last.configuration: table.times[last.configuration]})
    again = runtime.tables.put(FAMILY, table.device_model, one.as_json(GEMM))
    assert [path.name for path in again.parent.iterdir()] == [again.name]
    assert len(json.loads(again.read_text())["ranges"]) == 1


@given(st.integers(1, 100), st.integers(0, 10_000), st.integers(2, 12))
def test_sizes_that_stand_for_an_axis_have_both_its_ends(low: int, more: int, count: int) -> None:
    sizes = spread(low, low + more, count)
    assert sizes[0] == low
    assert sizes[-1] == low + more
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= count + 2
    assert all(low <= size <= low + more for size in inside(low, low + more, 1))


@given(st.lists(st.tuples(st.integers(1, 9000), st.floats(0.1, 9.0)), min_size=1, max_size=12), st.integers(0, 5))
def test_further_sizes_lie_where_the_best_time_grows(best_ms: list[tuple[int, float]], most: int) -> None:
    ordered = sorted(dict(best_ms).items())
    found = between(ordered, most)
    assert len(found) <= most
    for size in found:
        below = max(one for one in ordered if one[0] < size)
        above = min(one for one in ordered if one[0] > size)
        assert above[1] > GROWTH * below[1]


def test_sizes_between_end_where_no_time_grows_much() -> None:
    """With a time that grows as the rows do, a few halvings are enough: any size then loses little."""
    sizes = spread(1, 8192)
    while more := between([(size, 10.0 + size / 20) for size in sizes], 99):
        sizes = sorted({*sizes, *more})
    assert all(10.0 + b / 20 <= GROWTH * (10.0 + a / 20) or b - a == 1 for a, b in pairwise(sizes))
    assert len(sizes) < 90


def test_ranges_meet_where_whole_tiles_end() -> None:
    assert middle(256, 424) == 328
    assert middle(424, 430) is None
    assert middle(3, 5) == 4


@given(st.integers(1, 8192), st.integers(1, 8192))
def test_a_middle_lies_between(one: int, other: int) -> None:
    size = middle(min(one, other), max(one, other))
    assert size is None or min(one, other) < size < max(one, other)


def test_a_range_sees_each_kind_of_inputs_at_one_of_its_sizes() -> None:
    kinds = [f"kind {number}" for number in range(21)]
    parts = [KindsPart(place, 4).of_all(kinds) for place in range(4)]
    assert all(part[0] == kinds[0] and len(part) == 6 for part in parts)
    assert {kind for part in parts for kind in part} == set(kinds)
    assert ALL_KINDS.of_all(kinds) == tuple(kinds)


SOME = [Configuration.of(f"v{i}", {"TILE": i}) for i in range(4)]
SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=5, unique=True).map(sorted)


@st.composite
def measured(draw: st.DrawFn) -> dict[Configuration, dict[int, float]]:
    """Times of some configurations at some sizes, of which the first has them all."""
    sizes = draw(SIZES)
    time = st.floats(0.01, 10.0)
    times = {SOME[0]: {size: draw(time) for size in sizes}}
    for configuration in SOME[1 : draw(st.integers(1, len(SOME)))]:
        times[configuration] = {size: draw(time) for size in sizes if draw(st.booleans())}
    return times


@given(measured(), st.integers(1, 4))
def test_every_size_has_one_range_and_they_are_no_more_than_asked(
    times: dict[Configuration, dict[int, float]], most: int
) -> None:
    sizes = sorted(times[SOME[0]])
    spans = cover(times, 1, 5000, most)
    assert spans[0].low == 1
    assert spans[-1].high == 5000
    assert all(after.low == before.high + 1 for before, after in pairwise(spans))
    assert all(span.low <= span.high for span in spans)
    assert len(spans) <= most
    assert all(size in times[serving(spans, size)] for size in sizes)


@given(measured(), st.integers(1, 3))
@settings(max_examples=60)
def test_no_other_cover_loses_less(times: dict[Configuration, dict[int, float]], most: int) -> None:
    """Beside every way to cut the sizes into so many runs and to give each a configuration."""
    sizes = sorted(times[SOME[0]])
    best = {size: min(of_one[size] for of_one in times.values() if size in of_one) for size in sizes}
    least = math.inf
    for parts in range(1, min(most, len(sizes)) + 1):
        for cuts in combinations(range(1, len(sizes)), parts - 1):
            runs = [sizes[a:b] for a, b in zip((0, *cuts), (*cuts, len(sizes)), strict=True)]
            for chosen in product(times, repeat=parts):
                served = [
                    (times[c].get(size, math.inf), size) for c, run in zip(chosen, runs, strict=True) for size in run
                ]
                least = min(least, sum(math.log(time / best[size]) for time, size in served))
    spans = cover(times, 1, 5000, most)
    loss = sum(math.log(times[serving(spans, size)][size] / best[size]) for size in sizes)
    assert loss <= least + NO_GAIN * len(sizes) + 1e-9
    mean, largest = mean_loss(spans, times)
    assert mean == pytest.approx(math.exp(loss / len(sizes)) - 1)
    assert largest >= mean - 1e-12


def test_ranges_meet_where_times_cross() -> None:
    times = {SOME[0]: {100: 1.0, 200: 3.0}, SOME[1]: {100: 2.0, 200: 2.0}}
    assert cover(times, 1, 200) == [Span(1, 150, SOME[0]), Span(151, 200, SOME[1])]


def test_a_range_that_hardly_gains_is_not_worth_a_module() -> None:
    times = {SOME[0]: {1: 1.0, 2: 1.0}, SOME[1]: {1: 1.001, 2: 0.999}}
    assert len(cover(times, 1, 2)) == 1


def test_a_size_that_nothing_was_right_at_cannot_be_covered() -> None:
    with pytest.raises(NoCoverError):
        cover({SOME[0]: {}}, 1, 9)
    with pytest.raises(NoCoverError):
        cover({SOME[0]: {1: 1.0}, SOME[1]: {2: 1.0}}, 1, 9, most=1)


H200 = known_model("NVIDIA H200")
assert H200 is not None
LARGE = Family.of(GEMM, {"m": (1, 8192), "n": 4096, "k": 4096}, "bfloat16")
TALL = Configuration.of(
    "tensor_half_turned_sm90",
    {
        "BLOCKS": 132,
        "CLUSTER_M": 2,
        "CLUSTER_N": 1,
        "GROUP_M": 8,
        "MULTIPLIERS": 1,
        "RESIDENT": 1,
        "SPLIT_FAR": 1,
        "SPLIT_K": 1,
        "TILE_M": 128,
        "TILE_N": 64,
    },
)


def fits(configuration: Configuration, size: int) -> bool:
    place = TargetDevice(H200.slug, H200.limits)
    return is_sound_within(GEMM, LARGE, place, Choice(configuration, "table"), size, size)


@pytest.mark.parametrize(("size", "heights"), [(130, [72]), (170, [88]), (256, []), (261, [136, 72])])
def test_tiles_are_made_as_high_as_the_rows_need(size: int, heights: list[int]) -> None:
    found = Proposals(GEMM, LARGE, H200, []).snug(TALL, size, fits)
    assert [one.values["TILE_M"] for one in found] == heights
    assert all({**one.values, "TILE_M": 128} == TALL.values for one in found)


def test_shipped_records_propose_what_fits_without_a_measurement() -> None:
    records = shipped_records(GEMM, LARGE, H200)
    assert records
    proposals = Proposals(GEMM, LARGE, H200, records)
    found = {size: proposals.at(size, fits) for size in (100, 2000)}
    assert all(some and all(fits(one, size) for one in some) for size, some in found.items())
    assert len({*found[100], *found[2000]}) > len(found[100])
    shaped = proposals.shaped([TALL], 170, fits)
    assert next(one.values["TILE_M"] for one in shaped) == 88
    assert len(shaped) == 1 + RESHAPED
    assert all({**one.values, "TILE_M": 128} != TALL.values for one in shaped[1:])


def test_nothing_is_proposed_where_nothing_is_known() -> None:
    proposals = Proposals(GEMM, LARGE, H200, [])
    proposals.learn(Measured())
    assert proposals.at(100, fits) == []
