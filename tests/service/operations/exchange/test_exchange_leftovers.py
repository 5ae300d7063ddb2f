"""Of what an import refuses nothing is left, also where other rows of the same document are taken."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from sqlalchemy import select
from test_exchange_import import take
from tuned_results import MODEL, Results

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models


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
