import gzip
import json
import math
from pathlib import Path

import made_recordings as made
import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.measure import evaluate_here
from tilewright.tuner.loop.tune import Budget, tune
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.recorded.recordings import UnreadableRecordingError, read_recording
from tilewright.tuner.recorded.replay import ReplayBench, replay

RECORDED = Path(__file__).parents[4] / "shared" / "data" / "recorded"

KERNEL_TUNER = {
    "device_name": "Made Device",
    "kernel_name": "row_sum",
    "problem_size": [64, 32],
    "tune_params_keys": ["THREADS", "UNROLL"],
    "tune_params": {"THREADS": [32, 64], "UNROLL": [1, 2]},
    "cache": {
        "32,1": {"THREADS": 32, "UNROLL": 1, "time": 2.0, "times": [2.1, 2.0, 1.9], "compile_time": 5.0},
        "32,2": {"THREADS": 32, "UNROLL": 2, "time": 1.0, "times": [1.1, 1.0, 0.9], "compile_time": 6.0},
        "64,2": {"THREADS": 64, "UNROLL": 2, "time": "RuntimeFailedConfig", "compile_time": 7.0},
    },
}
T4 = {
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "milliseconds"},
    "results": [
        {
            "configuration": {"THREADS": 32, "UNROLL": 1},
            "times": {"compilation": 5.0, "runtimes": [2.1, 2.0, 1.9]},
            "invalidity": "correct",
        },
        {"configuration": {"THREADS": 64, "UNROLL": 1}, "times": {"compilation": 5.0}, "invalidity": "compile"},
    ],
}


def configuration(threads, unroll):
    return Configuration.of("recorded", {"THREADS": threads, "UNROLL": unroll})


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_kernel_tuner_cache_is_read_finished_or_not(tmp_path, finished, zipped):
    text = json.dumps(KERNEL_TUNER)
    text = text if finished else text.removesuffix("}}") + ",\n"
    path = tmp_path / ("cache.json.gz" if zipped else "cache.json")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    device, kernel, problem = replay(read_recording(path))
    space = kernel.space(problem, device.model.limits)
    assert set(space.feasible) == {configuration(32, 1), configuration(32, 2), configuration(64, 2)}
    assert kernel.default_configuration(space) == configuration(32, 1)
    (variant,) = kernel.variants
    assert {one.name: (one.values, one.default) for one in variant.parameters} == {
        "THREADS": ((32, 64), 32),
        "UNROLL": ((1, 2), 1),
    }
    bench = device.bench(kernel, problem, seed=0)
    assert evaluate_here(bench, configuration(32, 2), "warm").time_ms == pytest.approx(1.0)
    assert evaluate_here(bench, configuration(64, 2), "warm").outcome is Outcome.LAUNCH_FAILED
    assert device.model.slug == "replay:made-device"


def test_a_kernel_tuner_cache_may_have_one_axis_and_a_single_time(tmp_path):
    path = tmp_path / "cache.json"
    row = {"THREADS": 32, "UNROLL": 1, "time": 2.0, "compile_time": 5.0}
    path.write_text(json.dumps(KERNEL_TUNER | {"problem_size": 20_000_000, "cache": {"32,1": row}}), encoding="utf-8")
    recording = read_recording(path)
    assert recording.shape == {"size_0": 20_000_000}
    device, kernel, problem = replay(recording)
    assert evaluate_here(device.bench(kernel, problem, seed=0), configuration(32, 1), "warm").time_ms == 2.0


@pytest.mark.parametrize("value", ["ring", 1.5, None, math.inf, math.nan])
def test_a_value_that_is_no_whole_number_is_named(tmp_path, value):
    path, other = tmp_path / "cache.json", tmp_path / "T4.json"
    path.write_text(json.dumps(KERNEL_TUNER | {"tune_params": {"THREADS": [32, value], "UNROLL": [1]}}))
    row = {"configuration": {"THREADS": value}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}
    other.write_text(json.dumps(T4 | {"results": [row]}))
    for one in (path, other):
        with pytest.raises(UnreadableRecordingError, match="THREADS" if value else "TypeError"):
            read_recording(one)


def test_switches_are_numbers(tmp_path):
    path = tmp_path / "T4.json"
    row = {"configuration": {"PADDED": True, "TILE": 2.0}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}
    path.write_text(json.dumps(T4 | {"results": [row]}))
    assert list(read_recording(path).entries) == [Configuration.of("recorded", {"PADDED": 1, "TILE": 2})]


def test_a_t4_file_is_read(tmp_path):
    path = tmp_path / "row_sum_A100_T4.json"
    path.write_text(json.dumps(T4), encoding="utf-8")
    recording = read_recording(path)
    assert recording.entries[configuration(32, 1)].samples_ms == {"warm": (2.1, 2.0, 1.9)}
    assert recording.entries[configuration(64, 1)].outcome is Outcome.COMPILE_FAILED
    device, kernel, problem = replay(recording)
    assert len(kernel.space(problem, device.model.limits)) == 2


def test_samples_come_in_the_recorded_order_and_start_again():
    bench = ReplayBench(made.of({configuration(1, 1): made.entry(1.0, count=3)}, recorded=[]))
    executable = bench.compile(configuration(1, 1))
    first = bench.sample(executable, "warm", 2) + bench.sample(executable, "warm", 4)
    assert first == list(executable.entry.samples_ms["warm"]) * 2
    assert bench.sample(executable, "cold", 1) == [executable.entry.samples_ms["cold"][0]]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cache": {}}', '{"results": [{}]}'])
def test_a_file_that_is_no_recording_is_refused_by_name(tmp_path, text):
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableRecordingError, match=r"odd\.json"):
        read_recording(path)


def test_another_kernel_cannot_run_on_a_recording():
    device, kernel, _ = replay(made.valley())
    with pytest.raises(ValueError, match="recording is of made"):
        device.bench(kernel, kernel.problem({"n": 65}), seed=0)


def test_a_real_recording_of_the_cpu_device_is_tuned_again():
    # 40 trials of gemm m=256 n=100 k=784 float32, made by tune() on the CPU device (AMD EPYC, g++ 12.2)
    recording = read_recording(Path(__file__).parents[2] / "data" / "gemm_cpu.json.gz")
    device, kernel, problem = replay(recording)
    assert str(problem) == "gemm m=256,n=100,k=784 float32"
    space = kernel.space(problem, device.model.limits)
    assert len(space) == 40
    result = tune(device.bench(kernel, problem, 0), kernel, space, Budget(trials=100), seed=2)
    medians = {
        c: evaluate_here(device.bench(kernel, problem, 0), c, kernel.ranking_l2).time_ms for c in recording.entries
    }
    assert result.stopped_by == "exhausted"
    assert result.best.configuration.variant == "wpt"
    assert result.best.time_ms == pytest.approx(min(medians.values()), rel=0.1)
    assert result.slowest_ms == pytest.approx(max(medians.values()), rel=0.1)


@pytest.mark.skipif(not RECORDED.exists(), reason="the large recordings are not here")
def test_racing_spends_a_fraction_of_full_timing_without_losing_the_best():
    recording = read_recording(RECORDED / "convolution_A100_T4.json.gz")
    device, kernel, problem = replay(recording)
    space = kernel.space(problem, device.model.limits)
    bench = device.bench(kernel, problem, seed=0)
    result = tune(bench, kernel, space, Budget(trials=150), seed=1)
    tried = [t for t in bench.compiled if recording.entries[t].outcome is Outcome.MEASURED]
    full_ms = sum(32 * recording.entries[t].samples_ms["warm"][0] for t in dict.fromkeys(tried))
    best_ms = min(min(recording.entries[t].samples_ms["warm"][3:]) for t in tried)
    assert bench.drawn_ms < 0.35 * full_ms
    assert result.best.time_ms < 1.05 * best_ms
