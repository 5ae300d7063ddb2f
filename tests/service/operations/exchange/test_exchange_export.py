"""The document `tilewright/1`: what was measured here, complete, in pieces."""

from __future__ import annotations

import pytest
from sqlalchemy import func, update
from tuned_results import ENVIRONMENT, MODEL, VERIFIED, Results

from tilewright.service.operations.exchange import export as exchange_export
from tilewright.service.operations.exchange.document import Document
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models


def shapes(document) -> list[int]:
    return [study["problem"]["shape"]["m"] for study in document["studies"]]


def test_a_document_holds_problem_device_environment_and_figures(measured, export):
    document = export()
    assert document["format"] == "tilewright/1"
    (model,) = document["device_models"]
    assert (model["slug"], model["limits"]["multiprocessors"]) == (MODEL.slug, 132)
    first = document["studies"][0]
    assert first["problem"]["shape"] == {"m": 64, "n": 48, "k": 80}
    assert first["environment"]["driver"] == ENVIRONMENT.driver
    assert first["trials"] == [
        {
            "variant": "tiled",
            "configuration": {"TILE_WIDTH": 8},
            "source_hash": catalogue().get("gemm").source_hash("tiled"),
            "outcome": "measured",
            "l2": "warm",
            "warm_ms": 0.5,
            "registers": 32,
            "pack_ms": 0.012,
            "bound_ratio": 0.25,
            "compile_ms": 100.0,
        }
    ]
    assert first["best"]["trial"] == 0
    assert first["best"]["verified_at"] == VERIFIED.isoformat()
    assert first["best"]["library"] == {
        "name": "cuBLAS 13.0",
        "time_ms": pytest.approx(0.55),
        "faster": False,
        "bound_ratio": 0.5,
    }


def test_every_document_is_what_its_schema_says(measured, export):
    for document in (export(), export(trials=True), export(kernel="nosuch")):
        assert Document.model_validate_json(exchange_export.compact(document))


def test_all_trials_come_with_the_failed_ones_and_the_best_names_its_own(measured, export):
    study = export(trials=True)["studies"][0]
    assert [trial["outcome"] for trial in study["trials"]] == ["measured"] * 3 + ["launch_failed", "timed_out"]
    assert study["trials"][study["best"]["trial"]]["configuration"] == {"TILE_WIDTH": 8}


def test_kernel_and_device_model_narrow_it(measured, export):
    assert len(export(kernel="gemm", device_model=MODEL.slug)["studies"]) == 2
    assert export(kernel="gemv")["studies"] == []
    assert export(device_model="nvidia-nosuch")["studies"] == []


@pytest.mark.parametrize("trials", [False, True])
@pytest.mark.parametrize("piece", [1, 2, 3])
def test_pieces_and_pages_lose_and_double_nothing(measured, export, monkeypatch, trials, piece):
    monkeypatch.setattr(exchange_export, "PIECE", piece)
    with transaction() as session:
        for m in (256, 512, 1024):
            Results(session).tune({"m": m, "n": 48, "k": 80})
    every = [64, 128, 256, 512, 1024]
    assert shapes(export(trials=trials)) == every
    for limit in range(1, 7):
        found, cursor = [], None
        while True:
            page = export(trials=trials, limit=limit, cursor=cursor)
            assert len(page["studies"]) <= limit
            found += shapes(page)
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == every


def test_a_retracted_best_stays_out(measured, export):
    with transaction() as session:
        session.execute(
            update(models.BestConfiguration)
            .where(models.BestConfiguration.time_ms == 0.5)
            .values(retracted_at=func.now(), retracted_reason="wrong")
        )
    assert shapes(export()) == [128]
