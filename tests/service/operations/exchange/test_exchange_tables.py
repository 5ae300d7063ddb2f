"""Tables of families in bundles and in exported documents: what goes along for every size of an axis."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from factories import H200, LIMITS, TILED_16, TILED_32, Rows
from sqlalchemy import delete, func, select
from tuned_results import MODEL, Results, best, pointers, take

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.own import limits_of
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best.tables import find_table
from tilewright.service.operations.bundles.bundle import bundle
from tilewright.service.operations.bundles.folder import with_cubins, write_bundles
from tilewright.service.operations.exchange.checks import ImportContext, figures, least_of
from tilewright.service.operations.exchange.export import ExportSelection, export_studies
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel
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
def table_document(configured) -> dict:
    """What an installation with one table exports; afterwards it has none."""
    with transaction() as session:
        Rows(session).table(SHAPE, SPANS, TIMES, library_ms={1: 2.0, 64: 2.0})
    document = json.loads("".join(export_studies(ExportSelection())))
    with transaction() as session:
        session.execute(delete(models.FamilyTable))
    return document


def imported(document, **of):
    return import_document(json.dumps(document).encode(), ImportOptions(origin="lab-7"), **of)


def test_an_exported_table_is_imported_once_and_answers_behind_what_was_tuned_here(table_document):
    assert [table["shape"] for table in table_document["tables"]] == [SHAPE]
    assert [model["slug"] for model in table_document["device_models"]] == [H200.slug]
    assert imported(table_document, dry_run=True).tables == 1
    with transaction() as session:
        assert session.scalar(select(func.count()).select_from(models.FamilyTable)) == 0
    assert (imported(table_document).tables, imported(table_document).reasons) == (1, {"already-here": 1})
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
def test_a_table_that_cannot_be_right_is_left_out(table_document, change, reason):
    (table,) = table_document["tables"]
    for path, value in change.items():
        *places, name = path.split(".")
        part = table
        for place in places:
            part = part[int(place) if place.isdigit() else place]
        part[name] = value
    report = imported(table_document)
    assert (report.tables, dict(report.reasons)) == (0, {reason: 1})
    assert report.rows[0].pointer == "/tables/0"


@pytest.mark.parametrize("change", [{"ranges": []}, {"made_at": "yesterday"}, {"more": 1}, {"trials": -1}])
def test_what_is_no_table_is_refused_with_its_place(table_document, change):
    table_document["tables"][0] |= change
    with pytest.raises(InvalidRequestError, match=r"^tables\.0\."):
        imported(table_document)


def unlisted(document: Any) -> Any:
    """The document with a device model that has no data sheet."""
    document["device_models"][0] |= {"datasheet_gflops": {}, "datasheet_gb_per_s": None}
    return document


@pytest.mark.parametrize("time_ms", [1e-6, 1.9e-4])
def test_without_a_data_sheet_too_no_time_is_below_what_any_device_needs(document, time_ms):
    for study in unlisted(document)["studies"]:
        study["trials"][0]["warm_ms"] = time_ms
        study["best"] |= {"time_ms": time_ms, "ci_ms": [time_ms, time_ms]}
    answer = take(document)
    assert answer.best == 0
    assert answer.reasons == {Reason.IMPOSSIBLE_TIME: 2}
    assert best().match is not Match.EXACT


def test_a_large_problem_needs_the_time_of_its_work(document):
    """At 8192 cubed 132 multiprocessors of any make need more than half a millisecond; an H200 takes 7.8."""
    study = unlisted(document)["studies"][0]
    study["problem"]["shape"] = {"m": 8192, "n": 8192, "k": 8192}
    study["trials"][0]["warm_ms"] = 0.4
    answer = take(document)
    assert "/studies/0/trials/0" in pointers(answer, Reason.IMPOSSIBLE_TIME)
    assert "no device" in answer.rows[0].detail


@pytest.mark.parametrize(("least_ms", "taken"), [(0.01, False), (0.06, True)])
def test_a_time_far_from_all_others_of_its_study_was_not_measured(document, least_ms, taken):
    study = unlisted(document)["studies"][0]
    measured = study["trials"][0]
    for place in range(30):
        values = {"BLOCK_X": 2 ** (2 + place % 6), "BLOCK_Y": 2 ** (place // 6)}
        naive = next(t for t in study["trials"] if t["variant"] == "naive")
        more = {"variant": "naive", "configuration": values, "source_hash": naive["source_hash"]}
        study["trials"].append(measured | more | {"warm_ms": 0.5 + place / 100})
    measured["warm_ms"] = least_ms
    study["best"] |= {"time_ms": least_ms, "ci_ms": [least_ms, least_ms]}
    answer = take(document)
    assert ("/studies/0/trials/0" in pointers(answer, Reason.IMPOSSIBLE_TIME)) is not taken
    assert (best().time_ms == least_ms) is taken


def test_a_result_without_an_error_is_verified_only_where_the_kernel_checks_it_itself():
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 8, "n": 8, "k": 8})
    model = DeviceModel("gpu", "GPU", "cuda", limits_of((9, 0)), 1 << 20, {}, None)

    def place(kernel):
        return ImportContext(BestQuery(kernel, problem, "gpu", model.limits), model, ())

    assert [place(gemm).is_proven(ratio) for ratio in (0.5, 2.5, None)] == [True, False, False]
    checked = replace(gemm, check=lambda _outputs, _reference: None, flops=lambda _problem: None)
    assert [place(checked).is_proven(ratio) for ratio in (2.5, None)] == [False, True]
    assert place(checked).impossible(1.0) is None
    assert figures(place(checked), 1.0)["gflops"] is None


@pytest.mark.parametrize(("m", "is_possible"), [(65_536, False), (64, True)])
def test_memory_cannot_be_faster_than_its_data_sheet_for_what_no_cache_holds(m, is_possible):
    """2.3 times the roof: 1.07 GB from a memory of 4 TB/s; what fits the L2 cache may be as fast."""
    softmax = catalogue().get("softmax")
    problem = softmax.problem({"m": m, "n": 2048})
    model = DeviceModel("gpu", "GPU", "cuda", replace(limits_of((9, 0)), multiprocessors=132), 50 << 20, {}, 4000.0)
    at_roof_ms = softmax.bytes_moved(problem) / 4000.0 / 1e6
    place = ImportContext(BestQuery(softmax, problem, "gpu", model.limits), model, ())
    assert (place.impossible(max(at_roof_ms / 2.3, 0.004)) is None) is is_possible
    assert place.impossible(1.1 * at_roof_ms + 0.004) is None


@pytest.mark.parametrize(
    ("odd", "least_ms"), [([], 0.0), ([0.05], 1.0), ([0.0005, 0.05], 1.0), ([0.1001], 0.0), ([0.0999], 1.0)]
)
def test_times_below_the_last_gap_of_a_study_are_not_believed(odd, least_ms):
    assert least_of([*odd, *(1.0 + 0.01 * place for place in range(40))]) == least_ms
    assert least_of([*odd, 1.0]) == 0.0  # too few to tell


def test_a_gap_among_the_slower_times_of_a_study_says_nothing():
    assert least_of([1.0 + 0.01 * place for place in range(20)] + [100.0 + place for place in range(20)]) == 0.0


def stored(column) -> list[Any]:
    with transaction() as session:
        return sorted(session.scalars(select(column)))


def elsewhere(document):
    """The document's second study moved to another device model, kernel and driver, which nobody here has."""
    described = copy.deepcopy(document["device_models"][0]) | {"slug": "other-gpu", "name": "Other GPU"}
    document["device_models"].append(described)
    other = document["studies"][1]
    other["device_model"] = "other-gpu"
    other["problem"] |= {"kernel": "gemv", "shape": {"m": 128, "n": 48}, "options": {}}
    other["environment"]["driver"] = "999.9"
    return other


@pytest.mark.parametrize("known", [False, True])
def test_of_what_is_refused_entirely_nothing_is_left_beside_what_is_taken(document, known):
    """Neither where kernels are known from a worker nor where none was ever seen."""
    if known:
        with transaction() as session:
            Results(session).device()
    kernels, sources = stored(models.Kernel.name) or ["gemm"], stored(models.KernelVariant.source_hash)
    elsewhere(document)
    answer = take(document)
    assert (answer.studies, answer.best, answer.skipped) == (1, 1, 5)
    assert stored(models.DeviceModel.slug) == [MODEL.slug]
    assert stored(models.Kernel.name) == kernels
    gemm = catalogue().get("gemm")
    assert stored(models.KernelVariant.source_hash) == (
        sources or sorted(gemm.source_hash(variant.name) for variant in gemm.variants)
    )
    assert [len(stored(table.id)) for table in (models.Study, models.Problem)] == [1, 1]
    assert "999.9" not in stored(models.Environment.driver)


def test_a_device_model_with_one_row_that_is_taken_is_kept(document):
    other = elsewhere(document)
    other["problem"] = document["studies"][0]["problem"] | {"shape": {"m": 256, "n": 48, "k": 80}}
    for trial in other["trials"][1:]:
        trial["source_hash"] = "0" * 64
    other["best"] = None
    assert take(document).trials == 6
    assert stored(models.DeviceModel.slug) == sorted([MODEL.slug, "other-gpu"])
