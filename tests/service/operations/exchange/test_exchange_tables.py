"""Tables of families in bundles and in exported documents: what goes along for every size of an axis."""

from __future__ import annotations

import json

import pytest
from factories import H200, LIMITS, TILED_16, TILED_32, Rows
from sqlalchemy import delete, func, select

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best.tables import find_table
from tilewright.service.operations.bundles.bundle import bundle
from tilewright.service.operations.bundles.folder import with_cubins, write_bundles
from tilewright.service.operations.exchange.export import ExportSelection, export_studies
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.runtime import BundleWarning, Runtime
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.known.answers import AnswerCache

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


@pytest.fixture
def exported(configured) -> dict:
    """What an installation with one table exports; afterwards it has none."""
    with transaction() as session:
        Rows(session).table(SHAPE, SPANS, TIMES, library_ms={1: 2.0, 64: 2.0})
    document = json.loads("".join(export_studies(ExportSelection())))
    with transaction() as session:
        session.execute(delete(models.FamilyTable))
    return document


def imported(document, **of):
    return import_document(json.dumps(document).encode(), ImportOptions(origin="lab-7"), **of)


def test_an_exported_table_is_imported_once_and_answers_behind_what_was_tuned_here(exported):
    assert [table["shape"] for table in exported["tables"]] == [SHAPE]
    assert [model["slug"] for model in exported["device_models"]] == [H200.slug]
    assert imported(exported, dry_run=True).tables == 1
    with transaction() as session:
        assert session.scalar(select(func.count()).select_from(models.FamilyTable)) == 0
    assert (imported(exported).tables, imported(exported).reasons) == (1, {"already-here": 1})
    with transaction() as session:
        foreign = find_table(session, GEMM, FAMILY, H200.slug)
        assert (foreign.environment.origin, foreign.job_id, foreign.library) == ("lab-7", None, "cuBLAS 13.0")
        assert [one.configuration for one in foreign.ranges] == [{"TILE_WIDTH": 16}, {"TILE_WIDTH": 32}]
        own = Rows(session).table(SHAPE, [(1, 64, TILED_16)], TIMES)
        assert find_table(session, GEMM, FAMILY, H200.slug).id == own
    answer = find_best("gemm", H200.slug, {"m": 40, "n": 512, "k": 256})
    assert (answer.match, answer.configuration, answer.origins) == ("range", {"TILE_WIDTH": 16}, [])
    assert (
        json.loads("".join(export_studies(ExportSelection())))["tables"][0]["ranges"][0]["high"] == 64
    )  # its own alone


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": "nothing"}, "unknown-kernel"),
        ({"shape": {**SHAPE, "n": "1..2"}}, "invalid-problem"),
        ({"device_model": "nvidia-nowhere"}, "unknown-device-model"),
        ({"family_hash": "0" * 64}, "outside-the-space"),
        ({"shape": {**SHAPE, "m": "1..65"}}, "outside-the-space"),
        ({"ranges.0.high": 7}, "not-verified"),
        ({"ranges.0.high": 7, "ranges.0.verified_at": [1, 7]}, "outside-the-space"),
        ({"ranges.0.configuration": {"TILE_WIDTH": 17}}, "outside-the-space"),
        ({"ranges.0.variant": "nothing"}, "unknown-variant"),
        ({"ranges.0.source_hash": "0" * 64}, "unknown-source"),
        ({"ranges.1.verified_at": [9]}, "not-verified"),
        ({"measured.0.size": 65}, "not-a-configuration"),
        ({"measured.0.best_ms": 1e-7}, "impossible-time"),
    ],
)
def test_a_table_that_cannot_be_right_is_left_out(exported, change, reason):
    (table,) = exported["tables"]
    for path, value in change.items():
        *places, name = path.split(".")
        part = table
        for place in places:
            part = part[int(place) if place.isdigit() else place]
        part[name] = value
    report = imported(exported)
    assert (report.tables, dict(report.reasons)) == (0, {reason: 1})
    assert report.rows[0].pointer == "/tables/0"


@pytest.mark.parametrize("change", [{"ranges": []}, {"made_at": "yesterday"}, {"more": 1}, {"trials": -1}])
def test_what_is_no_table_is_refused_with_its_place(exported, change):
    exported["tables"][0] |= change
    with pytest.raises(InvalidRequestError, match=r"^tables\.0\."):
        imported(exported)
