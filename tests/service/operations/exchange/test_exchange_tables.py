"""Tables of families in bundles and in exported documents: what goes along for every size of an axis."""

from __future__ import annotations

import json

import pytest
from factories import H200, LIMITS, TILED_16, TILED_32, Rows

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.service.operations.bundles.bundle import bundle
from tilewright.service.operations.bundles.cubins import with_cubins
from tilewright.service.operations.bundles.folder import write_bundles
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.runtime import BundleWarning, Runtime
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.choice import TargetDevice

GEMM = catalogue().get("gemm")
SHAPE = {"m": "1..64", "n": 512, "k": 256}
FAMILY = Family.of(GEMM, SHAPE)
SPANS = [(1, 8, TILED_16), (9, 64, TILED_32)]
TIMES = {TILED_16: {1: 1.0, 64: 2.0}, TILED_32: {1: 1.5, 64: 1.5}}
PLACE = TargetDevice(H200.slug, LIMITS)


@pytest.fixture
def text(configured) -> str:
    with transaction() as session:
        Rows(session).table(SHAPE, SPANS, TIMES)
        return bundle(session, H200.slug, with_sources=True)


def test_a_bundle_has_tables_and_launchers_of_every_size_use_them(text, tmp_path):
    document = json.loads(text)
    (table,) = document["tables"]
    assert (table["shape"], [one["high"] for one in table["ranges"]]) == (SHAPE, [8, 64])
    assert {document["sources"][one["source_hash"]]["variant"] for one in table["ranges"]} == {"tiled"}
    assert document["kernels"]["gemm"]["entry"] == "gemm"
    write_bundles(tmp_path / "bundles", {H200.slug: text}, None)
    runtime = Runtime(bundle=tmp_path / "bundles", answers=AnswerCache(tmp_path / "answers"), shipped_records=False)
    found = runtime.families.ranges(GEMM, FAMILY, PLACE)
    assert [(one.high, one.choice.configuration) for one in found.ranges] == [(8, TILED_16), (64, TILED_32)]
    wider = Family.of(GEMM, {**SHAPE, "m": (1, 8192)})
    assert len(runtime.families.ranges(GEMM, wider, PLACE)) == 2


def test_code_of_a_range_is_one_for_all_its_sizes_and_loaded_from_what_is_trusted(text, tmp_path):
    document = json.loads(with_cubins(text))
    (table,) = document["tables"]
    assert [one["cubin"] in document["cubins"] for one in table["ranges"]] == [True, True]
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(document))
    opened = Bundle.open(path)
    assert {one.choice.cubin for one in opened.ranges(GEMM, FAMILY, PLACE).ranges} == {None}
    opened.is_trusted = True
    codes = [one.choice.cubin for one in opened.ranges(GEMM, FAMILY, PLACE).ranges]
    assert all(code.startswith(b"\x7fELF") for code in codes)
    assert len(set(codes)) == 2


def test_a_table_of_other_sources_is_left_aside_with_one_warning(text, tmp_path):
    path = tmp_path / "h200.json"
    path.write_text(text.replace(GEMM.source_hash("tiled"), "0" * 64))
    opened = Bundle.open(path)
    with pytest.warns(BundleWarning, match="its table"):
        assert opened.ranges(GEMM, FAMILY, PLACE) is None
    assert opened.ranges(GEMM, FAMILY, PLACE) is None
    assert opened.ranges(GEMM, Family.of(GEMM, {**SHAPE, "n": 8}), PLACE) is None
