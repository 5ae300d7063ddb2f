"""Times that no device can have taken, and results without a proof, are refused, and nothing of them is left."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from tuned_results import MODEL, Results, best, pointers, take

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.own import limits_of
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.exchange.checks import ImportContext, figures, least_of
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel


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
