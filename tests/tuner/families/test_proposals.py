"""Configurations that are proposed for a size: predicted ones, and those with tiles that fit it."""

from __future__ import annotations

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.known_models import known_model
from tilewright.tuner.families.proposals import RESHAPED, Proposals, shipped_records
from tilewright.tuner.families.table import Measured
from tilewright.tuner.runtime.any_size.ranges import is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice

GEMM = catalogue().get("gemm")
H200 = known_model("NVIDIA H200")
assert H200 is not None
FAMILY = Family.of(GEMM, {"m": (1, 8192), "n": 4096, "k": 4096}, "bfloat16")
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
    return is_sound_within(GEMM, FAMILY, place, Choice(configuration, "table"), size, size)


@pytest.mark.parametrize(("size", "heights"), [(130, [72]), (170, [88]), (256, []), (261, [136, 72])])
def test_tiles_are_made_as_high_as_the_rows_need(size: int, heights: list[int]) -> None:
    found = Proposals(GEMM, FAMILY, H200, []).snug(TALL, size, fits)
    assert [one.values["TILE_M"] for one in found] == heights
    assert all({**one.values, "TILE_M": 128} == TALL.values for one in found)


def test_shipped_records_propose_what_fits_without_a_measurement() -> None:
    records = shipped_records(GEMM, FAMILY, H200)
    assert records
    proposals = Proposals(GEMM, FAMILY, H200, records)
    found = {size: proposals.at(size, fits) for size in (100, 2000)}
    assert all(some and all(fits(one, size) for one in some) for size, some in found.items())
    assert len({*found[100], *found[2000]}) > len(found[100])
    shaped = proposals.shaped([TALL], 170, fits)
    assert next(one.values["TILE_M"] for one in shaped) == 88
    assert len(shaped) == 1 + RESHAPED
    assert all({**one.values, "TILE_M": 128} != TALL.values for one in shaped[1:])


def test_nothing_is_proposed_where_nothing_is_known() -> None:
    proposals = Proposals(GEMM, FAMILY, H200, [])
    proposals.learn(Measured())
    assert proposals.at(100, fits) == []
