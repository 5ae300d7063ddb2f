"""Spaces, launches and layouts stay as they were recorded, unless a change of them was meant (recorded_spaces.py)."""

from __future__ import annotations

import json

import pytest
from recorded_spaces import DEVICES, RECORD, said

from tilewright.kernels.catalogue import catalogue

ROWS = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("name", [kernel.name for kernel in catalogue().kernels()])
def test_spaces_launches_and_layouts_are_those_of_the_record(name, third):
    rows = [row for row in ROWS if row["kernel"] == name][third::3]
    assert rows, "the record is without this kernel: run recorded_spaces"
    for row in rows:
        assert json.loads(json.dumps(said(catalogue().get(name), row))) == row["said"]


def test_every_variant_is_in_the_record():
    recorded = {(row["kernel"], name) for row in ROWS for device in DEVICES for name in row["said"][device]}
    assert recorded == {(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants}
