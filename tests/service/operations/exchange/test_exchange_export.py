"""What is exported: the document `tilewright/1`, files of vLLM and SGLang; docs/exchange.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import func, update
from tuned_results import ENVIRONMENT, MODEL, VERIFIED, Results

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant, shape_of
from tilewright.kernels.space import powers_of_two
from tilewright.service.api.routes.exchange import MOST_EXPORTS
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.bundles.bundle import FORMAT as BUNDLE_FORMAT
from tilewright.service.operations.bundles.bundle import MAX_RESULTS, bundle
from tilewright.service.operations.exchange import export as exchange_export
from tilewright.service.operations.exchange.document import MAX_STUDIES, MAX_TRIALS, Document, TrialPart
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.exchange.serving import default_row, described, serving_files
from tilewright.service.operations.jobs.starts import starts_in
from tilewright.service.operations.strict_json import read
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


@pytest.mark.in_turn(3)
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


SIZES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BK", "num_warps")
RENAME = {"BLOCK_SIZE_K": "BK"}
KERNEL = Kernel(
    name="moe",
    axes=("m", "n", "k"),
    dtypes=("bfloat16", "float32"),
    arguments=(Tensor("x", "output", shape_of("m", "n")),),
    variants=(
        Variant(
            name="tiles",
            source="moe.py",
            launch=lambda _c, _p: Launch((1, 1, 1), (32, 1, 1)),
            parameters=tuple(powers_of_two(name, 1, 256, default=16) for name in SIZES),
        ),
    ),
)


def result(m, n, block_m, dtype="bfloat16", **more):
    values = dict(zip(SIZES, (block_m, 64, 32, 4), strict=True))
    problem = {"kernel": "moe", "shape": {"m": m, "n": n, "k": 7168}, "dtype": dtype, "options": {}}
    return {**problem, "variant": "tiles", "configuration": values} | more


BUNDLE = {
    "device_model": {"name": "NVIDIA H200"},
    "results": [
        result(64, 512, 32),
        result(1, 512, 16),
        result(1, 256, 16, "float32"),
        result(1, 512, 128, kernel="gemm"),
        result(1, 512, 128, options={"trans": True}),
    ],
}


def test_a_file_holds_every_m_of_its_shape():
    files = serving_files(BUNDLE, KERNEL, RENAME)
    row = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "num_warps": 4}
    assert files == {
        "N=512,K=7168,device_name=NVIDIA_H200.json": {"1": row, "64": row | {"BLOCK_SIZE_M": 32}},
        "N=256,K=7168,device_name=NVIDIA_H200,dtype=float32.json": {"1": row},
    }
    assert list(files["N=512,K=7168,device_name=NVIDIA_H200.json"]) == ["1", "64"]


@pytest.mark.parametrize(
    ("gain", "interval", "block"),
    [(1.2, [0.9, 1.1], 128), (1.05, [0.9, 1.1], 16), (None, [0.9, 1.1], 16), (1.2, None, 16)],
)
def test_a_row_is_the_default_unless_the_best_is_ahead_beyond_the_interval(gain, interval, block):
    row = result(8, 512, 128, time_ms=1.0, gain_over_default=gain, ci_ms=interval)
    [file] = serving_files(BUNDLE | {"results": [row]}, KERNEL, RENAME).values()
    assert file["8"]["BLOCK_SIZE_M"] == block
    said = "m=8" if block == 128 else "m=8; those of 8 are the default configuration"
    said = f"rows for {said}; any other m takes the nearest row"
    assert described(file, default_row(KERNEL, RENAME)) == f"{said}; without GROUP_SIZE_M, which their kernels take"
    grouped = {m: values | {"GROUP_SIZE_M": 1} for m, values in file.items()}
    assert described(grouped, {}) == "rows for m=8; any other m takes the nearest row"


def test_what_is_written_is_read_again():
    (rows, *_) = serving_files(BUNDLE, KERNEL, RENAME).values()
    found = starts_in(rows, KERNEL, {"m": 50, "n": 512, "k": 7168}, RENAME)
    assert [start.configuration["BLOCK_SIZE_M"] for start in found.starts] == [32, 16]
    assert found.unknown == set()


def test_a_result_from_before_an_option_was_added_has_the_options_default():
    linear = catalogue().get("linear")
    stored = {option.name: option.default for option in linear.options if option.name not in {"packed_b", "output"}}
    row = {"kernel": "linear", "shape": {"m": 8, "n": 32, "k": 16}, "dtype": "float32", "options": stored}
    bundle = BUNDLE | {"results": [row | {"configuration": {"TILE_M": 8, "TILE_N": 32, "TILE_K": 8}}]}
    names = {f"BLOCK_SIZE_{axis}": f"TILE_{axis}" for axis in "MNK"}
    [file] = serving_files(bundle, linear, names).values()
    assert file == {"8": {"BLOCK_SIZE_M": 8, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 8}}


@pytest.mark.parametrize(
    ("kernel", "said"), [("gemm", "no parameter BLOCK_SIZE_M"), ("moe", "no parameter BLOCK_SIZE_K")]
)
def test_a_kernel_without_their_parameters_is_refused(kernel, said):
    with pytest.raises(InvalidRequestError, match=said):
        serving_files(BUNDLE, KERNEL if kernel == "moe" else catalogue().get(kernel), {})


PAGE = (Path(__file__).parents[4] / "docs" / "exchange.md").read_text(encoding="utf-8")


def test_the_example_is_a_document():
    (example,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert Document.model_validate_json(example)


def test_every_reason_is_explained_and_no_other_is():
    section = PAGE.split("## Rows that are left out\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [reason.value for reason in Reason]


def test_every_field_of_a_trial_is_named():
    section = PAGE.split("## The format tilewright/1\n")[1].split("\n## ")[0]
    assert [name for name in TrialPart.model_fields if f'"{name}"' not in section and f"`{name}`" not in section] == []


def test_every_member_of_a_bundle_is_explained(measured):
    section = PAGE.split("## Bundles\n")[1]
    with transaction() as session:
        Results(session).device()
        document = read(bundle(session, None, with_sources=True).encode())
    assert BUNDLE_FORMAT in section
    for name in document.keys() - {"format", "made_by"} | document["results"][0].keys():
        assert f"`{name}`" in section, name


@pytest.mark.parametrize("limit", [MAX_STUDIES, MAX_TRIALS, MAX_RESULTS, MOST_EXPORTS])
def test_limits_are_as_stated(limit):
    assert re.search(rf"\b{limit:,}\b", PAGE.split("## Limits\n")[1])
