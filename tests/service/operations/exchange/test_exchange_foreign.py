"""T4 files and Kernel Tuner's caches: written for other tools, and read as times without proof."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from found import find_best
from sqlalchemy import select
from tuned_results import MODEL, SHAPE, WIDTHS, Results

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import Match
from tilewright.service.operations.exchange.foreign_export import export_kernel_tuner, export_t4
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.recorded.recordings import read_recording

CACHE = {
    "device_name": "Test GPU",
    "kernel_name": "gemm_kernel",
    "problem_size": [64, 48],
    "tune_params_keys": ["block_size", "other"],
    "tune_params": {"block_size": [8, 16, 32], "other": [1]},
    "cache": {
        "8": {"TILE": 8, "time": 0.5, "times": [0.4, 0.5, 0.9], "compile_time": 90.0},
        "16": {"TILE": 16, "time": 0.25, "compile_time": 80.0},
        "32": {"TILE": 32, "time": "CompilationFailedConfig"},
        "17": {"TILE": 17, "time": 0.1},
        "9": {"TILE": "8", "time": 0.1},
        "x": {"TILE": 8, "time": -1.0},
        "y": {"TILE": 8, "time": "Sunny"},
    },
}
CACHE["tune_params_keys"] = ["TILE"]
NAMED = {
    "kernel": "gemm",
    "shape": SHAPE,
    "device_model": MODEL.slug,
    "variant": "tiled",
    "rename": {"TILE": "TILE_WIDTH"},
    "origin": "lab-7",
}


@pytest.fixture
def study_id(measured) -> int:
    with transaction() as session:
        return session.scalars(select(models.Study.id).order_by(models.Study.id)).first()


@pytest.fixture
def here(database) -> None:
    with transaction() as session:
        Results(session).device()


def take(document, **named):
    return import_document(json.dumps(document).encode(), ImportOptions(**named))


def trials() -> dict[str, float | None]:
    with transaction() as session:
        rows = session.scalars(select(models.Trial).order_by(models.Trial.number))
        return {f"{r.configuration['variant']} {r.configuration.get('TILE_WIDTH')}": r.time_ms for r in rows}


def test_a_kernel_tuner_cache_is_taken_row_by_row(here):
    answer = take(CACHE, **NAMED)
    assert (answer.format, answer.studies, answer.trials, answer.best) == ("Kernel Tuner", 1, 3, 0)
    assert trials() == {"tiled 8": 0.5, "tiled 16": 0.25, "tiled 32": None}
    assert {row.pointer: row.reason for row in answer.rows} == {
        "/cache/17": Reason.OUTSIDE_THE_SPACE,
        "/cache/9": Reason.NOT_A_CONFIGURATION,
        "/cache/x": Reason.NOT_A_CONFIGURATION,
        "/cache/y": Reason.NOT_A_CONFIGURATION,
    }


def test_times_without_proof_are_never_the_answer(here):
    take(CACHE, **NAMED)
    with transaction() as session:
        assert find_best(session, "gemm", MODEL.slug, SHAPE).match is Match.DEFAULT
        study = session.scalars(select(models.Study)).one()
        assert session.get_one(models.Environment, study.environment_id).runtime == "Kernel Tuner, unverified"


def test_the_cache_of_a_run_that_goes_on_is_taken(here):
    text = json.dumps(CACHE)
    for open_text in (text[:-2], text[:-2] + ","):
        answer = import_document(open_text.encode(), ImportOptions(**NAMED))
        assert (
            answer.trials + answer.reasons[Reason.ALREADY_HERE if answer.trials == 0 else Reason.NOT_A_CONFIGURATION]
            >= 3
        )


def test_the_variant_is_the_only_one_with_these_parameters(here):
    named = {name: value for name, value in NAMED.items() if name != "variant"}
    assert take(CACHE, **named).trials == 3


T4_FILE = {
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "seconds"},
    "results": [
        {"configuration": {"TILE_WIDTH": 8}, "times": {"runtimes": [5e-4]}, "invalidity": "correct", "correctness": 1},
        {
            "configuration": {"TILE_WIDTH": 16},
            "times": {},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 0.25, "unit": "ms"}],
        },
        {"configuration": {"TILE_WIDTH": 32}, "times": {}, "invalidity": "timeout", "correctness": 0},
        {"configuration": {"TILE_WIDTH": 32}, "times": {}, "invalidity": "weather", "correctness": 0},
        {"configuration": {"TILE_WIDTH": 16.5}, "times": {}, "invalidity": "correct", "correctness": 1},
    ],
}


def test_a_t4_file_is_taken_in_its_own_unit(here):
    answer = take(T4_FILE, **NAMED)
    assert (answer.format, answer.trials, answer.skipped) == ("T4", 3, 2)
    assert trials() == {"tiled 8": pytest.approx(0.5), "tiled 16": 0.25, "tiled 32": None}


@pytest.mark.parametrize(
    ("unit", "factor"), [("ms", 1), ("milliseconds", 1), ("miliseconds", 1), ("s", 1e3), (None, 1)]
)
def test_units_of_t4_files(here, unit, factor):
    metadata = {} if unit is None else {"timeunit": unit}
    assert take(T4_FILE | {"metadata": metadata}, **NAMED).trials == 3
    assert trials()["tiled 8"] == pytest.approx(5e-4 * factor)


@pytest.mark.parametrize("unit", ["weeks", ["ms"], {"ms": 1}, 1])
def test_a_measurement_in_an_unknown_unit_is_skipped(here, unit):
    measured = {"configuration": {"TILE_WIDTH": 16}, "times": {}, "invalidity": "correct"}
    measured["measurements"] = [{"name": "time", "value": 0.25, "unit": unit}]
    answer = take(T4_FILE | {"results": [*T4_FILE["results"][:1], measured]}, **NAMED)
    assert (answer.trials, [row.pointer for row in answer.rows]) == (1, ["/results/1"])


@pytest.mark.parametrize(
    ("document", "change", "error", "field"),
    [
        (CACHE, {"kernel": None}, InvalidRequestError, "kernel"),
        (CACHE, {"kernel": "nosuch"}, InvalidRequestError, "kernel"),
        (CACHE, {"shape": None}, InvalidRequestError, "shape"),
        (CACHE, {"shape": {"m": 1}}, InvalidProblemError, "shape.n"),
        (CACHE | {"device_name": None}, {"device_model": None}, InvalidRequestError, "device_model"),
        (CACHE | {"device_name": "--"}, {"device_model": None}, InvalidRequestError, "device_model"),
        (CACHE | {"cache": []}, {}, InvalidRequestError, "cache"),
        (CACHE | {"tune_params_keys": [1]}, {}, InvalidRequestError, "tune_params_keys"),
        (CACHE | {"tilewright": {}}, {}, InvalidRequestError, "tilewright.problem"),
        (T4_FILE | {"schema_version": "2.0.0"}, {}, InvalidRequestError, "schema_version"),
        (T4_FILE | {"schema_version": 1}, {}, InvalidRequestError, "schema_version"),
        (T4_FILE | {"results": {}}, {}, InvalidRequestError, "results"),
        (T4_FILE | {"metadata": {"timeunit": "weeks"}}, {}, InvalidRequestError, "metadata.timeunit"),
    ],
)
def test_a_file_that_cannot_be_placed_is_refused_with_the_field(here, document, change, error, field):
    with pytest.raises(error) as caught:
        take(document, **{name: value for name, value in (NAMED | change).items() if value is not None})
    assert caught.value.field == field
    assert trials() == {}


def test_our_own_files_say_themselves_what_they_are_of(study_id, empty):
    documents = [
        b"".join(p.encode() for p in export_t4(study_id)),
        b"".join(p.encode() for p in export_kernel_tuner(study_id, None)),
    ]
    for body, taken in zip(documents, (5, 3), strict=True):
        empty()
        with transaction() as session:
            Results(session).device()
        assert import_document(body, ImportOptions()).trials == taken
        assert {name: t for name, t in trials().items() if t} == {"tiled 8": 0.5, "tiled 16": 1.0, "tiled 32": 1.5}


def test_t4_says_of_each_trial_how_it_ended(study_id):
    document = json.loads("".join(export_t4(study_id)))
    assert document["schema_version"] == "1.0.0"
    by_outcome = [row["invalidity"] for row in document["results"]]
    assert sorted(by_outcome) == ["correct", "correct", "correct", "runtime", "timeout"]
    measured = next(r for r in document["results"] if r["configuration"].get("TILE_WIDTH") == 8)
    assert measured["times"]["runtimes"] == [0.5, 0.5, 0.5]
    assert {"name": "time", "value": 0.5, "unit": "ms"} in measured["measurements"]
    for row in document["results"]:  # what the schema demands
        assert row.keys() >= {"configuration", "times", "invalidity", "correctness"}


def test_the_tuner_replays_our_cache_file_as_it_does_kernel_tuners_own(study_id, tmp_path: Path):
    path = tmp_path / "cache.json"
    path.write_text("".join(export_kernel_tuner(study_id, "tiled")))
    recording = read_recording(path)
    assert recording.device_name == "Test GPU"
    assert {dict(c.items)["TILE_WIDTH"] for c in recording.entries} == set(WIDTHS)
    assert {entry.outcome for entry in recording.entries.values()} == {Outcome.MEASURED}
    path.write_text("".join(export_kernel_tuner(study_id, "naive")))
    assert {e.outcome for e in read_recording(path).entries.values()} == {Outcome.LAUNCH_FAILED}


def test_what_is_not_there_cannot_be_exported(study_id):
    for call in (lambda: export_t4(study_id + 999), lambda: export_t4(2**40), lambda: export_kernel_tuner(0, None)):
        with pytest.raises(NotFoundError, match="study"):
            call()
    with pytest.raises(NotFoundError, match="variant"):
        export_kernel_tuner(study_id, "nosuch")


KTT = {
    "Metadata": {"Device": "Test GPU", "TimeUnit": "Microseconds", "KttVersion": "2.1.0"},
    "Results": [
        {
            "KernelName": "gemm",
            "Status": status,
            "TotalDuration": duration,
            "Configuration": [{"Name": "TILE", "Value": value, "IsDouble": False}],
            "ComputationResults": [],
        }
        for status, duration, value in [
            ("Ok", 500.0, 8),
            ("Ok", 250.0, 16),
            ("CompilationFailed", 0.0, 32),
            ("ValidationFailed", 0.0, 4),
            ("Vanished", 0.0, 64),
            ("Ok", 100.0, 2.5),
        ]
    ],
}


def test_results_of_ktt_are_read_in_their_unit_of_time(device):
    report = import_document(json.dumps(KTT).encode(), ImportOptions(**NAMED))
    assert report.trials == 4
    with transaction() as session:
        rows = session.scalars(select(models.Trial).order_by(models.Trial.number)).all()
        assert [(row.configuration["TILE_WIDTH"], row.outcome, row.time_ms) for row in rows] == [
            (8, Outcome.MEASURED, 0.5),
            (16, Outcome.MEASURED, 0.25),
            (32, Outcome.COMPILE_FAILED, None),
            (4, Outcome.WRONG_RESULT, None),
        ]


def test_a_unit_of_time_that_ktt_does_not_have_is_refused(device):
    document = {**KTT, "Metadata": {"TimeUnit": "Fortnights"}}
    with pytest.raises(InvalidRequestError, match="unit of time"):
        import_document(json.dumps(document).encode(), ImportOptions(**NAMED))


def test_booleans_are_numbers_and_failures_that_look_like_times_are_none(device):
    rows = {"8": {"TILE": 8, "time": 0.5, "GFLOP/s": float("nan")}, "16": {"TILE": 16, "time": 1e20}}
    rows["1"] = {"TILE": True, "time": 0.25}
    report = import_document(json.dumps({**CACHE, "cache": rows}).encode(), ImportOptions(**NAMED), dry_run=True)
    said = " ".join(map(str, report.rows))
    assert "stands for a failure" in said
    assert "whole number" not in said


def test_parameters_that_no_variant_has_are_told_apart_from_the_nearest(device):
    named = {name: value for name, value in NAMED.items() if name not in {"variant", "rename"}}
    report = import_document(json.dumps(CACHE).encode(), ImportOptions(**named), dry_run=True)
    said = " ".join(map(str, report.rows))
    assert "no variant of gemm has these parameters; the nearest is tiled: the row lacks its TILE_WIDTH" in said
    assert "it has no TILE. --rename" in said
