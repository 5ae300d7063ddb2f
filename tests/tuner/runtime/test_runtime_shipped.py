"""What the launcher predicts from shipped records, where nothing else is known."""

import gzip
import json
import sys
from dataclasses import replace
from unittest.mock import ANY

import pytest
import shipped_file
from made_bundles import GEMM

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.predict import shipped
from tilewright.tuner.predict.shipped import shipped_models
from tilewright.tuner.runtime import Runtime, UntunedWarning
from tilewright.tuner.runtime.choice import TargetDevice, is_admitted
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.known.prediction_process import PREDICTIONS, PredictionProcess, answers_at_once, close
from tilewright.tuner.runtime.known.shipped import shipped_answer
from tilewright.tuner.runtime.launches.devices import place_of
from tilewright.tuner.runtime.runtime import default_runtime

H200 = TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
NEVER_MEASURED = GEMM.problem({"m": 1200, "n": 900, "k": 700})


@pytest.fixture
def answers(tmp_path):
    return AnswerCache(tmp_path / "answers")


def test_a_measured_device_model_is_answered_without_a_service_and_without_tuning(answers):
    choice = Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, H200)
    assert (choice.origin, choice.match) == ("shipped", "predicted")
    assert is_admitted(GEMM, NEVER_MEASURED, H200, choice.configuration)
    assert 0.001 < choice.time_ms < 0.1  # an H200 has 989 TFLOP/s at most; CUDA cores take 0.03 ms
    assert choice.library_faster is False
    assert choice.library_ms > choice.time_ms


def test_the_next_process_finds_the_prediction_on_disk(answers, monkeypatch):
    first = Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, H200)
    monkeypatch.setattr("tilewright.tuner.runtime.known.shipped.shipped_series", lambda *_: pytest.fail("read again"))
    assert Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, H200) == first


def test_a_device_model_like_it_gets_the_configuration_without_its_times(answers):
    choice = Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, replace(H200, slug="nvidia-gh200"))
    assert (choice.origin, choice.match) == ("shipped", "transferred")
    assert (choice.time_ms, choice.library_ms, choice.library_faster) == (None, None, None)


@pytest.mark.parametrize(("batches", "match"), [(6, "predicted"), (3, "transferred")])
def test_batches_of_this_model_and_products_of_the_likest_answer_together(tmp_path, monkeypatch, batches, match):
    content = shipped_file.document()
    shipped_file.write(tmp_path, content)
    series = content["series"][0] | {"axes": ["m", "n", "k", "batch"]}
    series["shapes"] = [row | {"sizes": [*row["sizes"], 8]} for row in series["shapes"][:batches]]
    for row in series["shapes"]:
        row["trials"] = {"naive": [[*values, ms / 1000, 30] for *values, ms, _ in row["trials"]["naive"]]}
    of_h100 = content | {"device_model": "nvidia-h100", "name": "NVIDIA H100", "series": [series]}
    (tmp_path / "nvidia-h100.json.gz").write_bytes(gzip.compress(json.dumps(of_h100).encode()))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    asked = GEMM.problem({"m": 300, "n": 300, "k": 300, "batch": 8})
    answer = shipped_answer(GEMM, asked, replace(H200, slug="nvidia-h100"))
    assert (answer["variant"], answer["match"], answer["time_ms"] is None) == ("naive", match, match == "transferred")
    assert shipped_answer(GEMM, asked, H200)["match"] == "predicted"  # of which there are single products enough


def test_another_compute_capability_is_not_answered(answers):
    older = TargetDevice("nvidia-a100", replace(H200.limits, compute_capability=(8, 0)))
    with pytest.warns(UntunedWarning, match="no result for gemm"):
        assert Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, older).origin == "default"


def test_a_cpu_device_reads_no_records(answers, monkeypatch):
    monkeypatch.setattr("tilewright.tuner.predict.shipped._documents", lambda _: pytest.fail("read"))
    with pytest.warns(UntunedWarning):
        assert Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, place_of("cpu")).origin == "default"


def test_a_kernel_without_shipped_records_is_not_answered(answers):
    softmax = catalogue().get("softmax")
    with pytest.warns(UntunedWarning):
        assert (
            Runtime(answers=answers).choose(softmax, softmax.problem({"m": 64, "n": 64}, "float64"), H200).origin
            == "default"
        )


def test_what_is_pinned_or_answered_goes_before(answers):
    other = GEMM.space(NEVER_MEASURED, H200.limits).defaults()[0]
    answers.put(
        NEVER_MEASURED,
        H200,
        {"variant": other.variant, "configuration": dict(other.values), "source_hash": GEMM.source_hash(other.variant)},
    )
    assert Runtime(answers=answers).choose(GEMM, NEVER_MEASURED, H200).origin == "cache"
    pinned = Runtime(answers=answers, pinned={NEVER_MEASURED: other})
    assert pinned.choose(GEMM, NEVER_MEASURED, H200).origin == "pinned"


def test_they_can_be_switched_off(answers, monkeypatch, tmp_path):
    with pytest.warns(UntunedWarning):
        choice = Runtime(answers=answers, shipped_records=False).choose(GEMM, NEVER_MEASURED, H200)
    assert choice.origin == "default"
    monkeypatch.setenv("TILEWRIGHT_SHIPPED_RECORDS", "false")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    default_runtime.cache_clear()
    try:
        with pytest.warns(UntunedWarning):
            assert default_runtime().choose(GEMM, NEVER_MEASURED, H200).origin == "default"
    finally:
        default_runtime.cache_clear()


def test_a_search_beside_the_program_finds_what_choosing_does(answers, tmp_path, request):
    here = Runtime(answers=AnswerCache(tmp_path / "here")).choose(GEMM, NEVER_MEASURED, H200)
    runtime = Runtime(answers=answers)
    request.addfinalizer(PREDICTIONS.close)
    assert not runtime.is_known(GEMM, NEVER_MEASURED, H200)
    runtime.look_for(GEMM, NEVER_MEASURED, H200)
    assert runtime.is_known(GEMM, NEVER_MEASURED, H200)
    found = runtime.choose(GEMM, NEVER_MEASURED, H200)
    assert (found.configuration, found.match) == (here.configuration, here.match)
    assert Runtime(answers=answers).is_known(GEMM, NEVER_MEASURED, H200)  # from the disk


@pytest.mark.in_turn(3)
def test_several_predictions_come_from_as_many_processes(monkeypatch, request):
    problems = [GEMM.problem({"m": m, "n": 1536, "k": 640}) for m in (100, 900, 3000)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3))
    assert answers_at_once(GEMM, problems, H200) == {}  # one process would be no quicker
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(5))
    request.addfinalizer(close)
    found = answers_at_once(GEMM, problems, H200)
    expected = {problem: shipped_answer(GEMM, problem, H200)["configuration"] for problem in problems}
    assert {problem: answer["configuration"] for problem, answer in found.items()} == expected


@pytest.mark.in_turn(2)
def test_predictions_come_from_another_process_and_survive_its_end(monkeypatch):
    predictions = PredictionProcess()
    expected = shipped_answer(GEMM, NEVER_MEASURED, H200)
    expected = expected | {"time_ms": pytest.approx(expected["time_ms"], rel=1e-3), "library": ANY}
    with monkeypatch.context() as patched:
        patched.setattr(
            "tilewright.tuner.runtime.known.shipped.shipped_answer", lambda *_: pytest.fail("computed here")
        )
        assert predictions.answer(GEMM, NEVER_MEASURED, H200) == expected
        predictions._process.kill()
        predictions._process.wait()
        assert predictions.answer(GEMM, NEVER_MEASURED, H200) == expected
    predictions.close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert predictions.answer(GEMM, NEVER_MEASURED, H200) == expected
