"""The network's benchmark, as far as it runs without a GPU: the CPU's rows, the trace, the steps, the table."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.network.network import Network

H200 = Limits((9, 0), 132, 140 * 2**30, max_shared_bytes=227 * 1024, shared_bytes_per_multiprocessor=228 * 1024)


@pytest.fixture
def network():
    return Network.random((20, 7, 5), seed=1)


def test_the_loop_computes_the_network(benchmark_module, network):
    paths, bench = benchmark_module("network_table.paths"), benchmark_module("network")
    x = np.random.default_rng(1).standard_normal((9, 20)).astype(np.float32)
    labels = network.forward(x).argmax(axis=1)
    with paths.loop(network, x) as way:
        row = bench.host_row(way, bench.reference(network, x), labels)
    assert row["max_error"] < 1e-6
    assert row["accuracy"] == 1
    assert 0 < row["pass_us"]["low"] <= row["pass_us"]["median"] <= row["pass_us"]["high"]
    wrong = bench.checked(paths.blas(network, x).run(), bench.reference(network, x), labels + 1)
    assert wrong["max_error"] < 1e-6
    assert wrong["accuracy"] == 0


@EXHAUSTIVE
def test_without_a_gpu_the_steps_run_on_the_cpu_device_and_the_table_says_so(benchmark_module, network):
    bench, paths, tuning = map(benchmark_module, ("network", "network_table.paths", "network_table.tuning"))
    x = np.random.default_rng(1).standard_normal((9, 20)).astype(np.float32)
    device = CpuDevice()
    try:
        steps = tuning.tuned_steps(device, network, 9, Budget(trials=1))
        environment = asdict(device.environment)
    finally:
        device.close()
    assert [step.name for step in steps] == ["tiled", "wpt_strided", "wpt", "tuned"]  # the others need PTX
    labels, exact = network.forward(x).argmax(axis=1), bench.reference(network, x)
    rows = [bench.host_row(paths.launched_on_cpu(network, x, step), exact, labels) for step in steps]
    assert all(row["max_error"] < 1e-6 and row["accuracy"] == 1 and row["pass_us"]["low"] > 0 for row in rows)
    document = {name: value for name, value in DOCUMENT.items() if name != "torch"}
    text = benchmark_module("network_table.table").table(document | {"rows": rows, "environment": environment})
    assert "**CPU device**" in text
    assert text.count("| 1.0000 |") == 4
    assert "eager" not in text


def test_a_batch_holds_the_held_out_digits_in_order(benchmark_module):
    x, labels = benchmark_module("network").batch_of_digits(400)
    assert x.shape == (400, 784)
    np.testing.assert_array_equal(x[:40], x[360:])
    np.testing.assert_array_equal(labels[:40], labels[360:])


def event(name, ts, dur=2.0, cat="kernel"):
    return {"name": name, "ts": ts, "dur": dur, "cat": cat, "ph": "X"}


def test_a_trace_is_cut_at_its_marks_whatever_the_order_of_its_lines(benchmark_module):
    times = benchmark_module("network_table.times")
    events = [
        event("before", 1),
        event("spin_kernel(long)", 10),
        event("gemm", 11, 4.0),
        event("cuLaunchKernel", 11, 9.0, "cuda_runtime"),
        event("relu", 16),
        event("spin_kernel(long)", 20),
        event("Memset", 21, 1.0, "gpu_memset"),
        event("gemm", 23, 3.0),
        {"name": "process_name", "ph": "M"},
    ]
    found = times.sections(events[::-1], 2)
    assert [[e["name"] for e in turn] for turn in found] == [["gemm", "relu"], ["Memset", "gemm"]]
    with pytest.raises(ValueError, match="not 3"):
        times.sections(events, 3)
    with pytest.raises(ValueError, match="1 with kernels"):
        times.sections(events[:6], 2)


def test_every_way_has_as_many_turns_and_each_begins_a_round_in_its_time(benchmark_module):
    turns = benchmark_module("network_table.times").turns
    assert turns(3, 4) == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]


def test_steps_name_variants_that_linear_has(benchmark_module):
    tuning = benchmark_module("network_table.tuning")
    known = {variant.name for variant in catalogue().get("linear").variants}
    assert {name for _, names in tuning.STEPS.values() for name in names} <= known


def test_steps_survive_their_file(benchmark_module, network):
    tuning = benchmark_module("network_table.tuning")
    problems = tuning.problems(network, 64)
    assert [str(p.kernel) for p in problems] == ["linear", "linear", "softmax"]
    pinned = {}
    for problem in problems:
        kernel = catalogue().get(problem.kernel)
        pinned[problem] = kernel.default_configuration(kernel.space(problem, H200))
    steps = [tuning.Step("tiled", "tiled", pinned, ["linear m=1"])]
    assert tuning.from_json(json.loads(json.dumps(tuning.as_json(steps)))) == steps


def times(median):
    return {"median": median, "low": median * 0.9, "high": median * 1.1, "spread": 0.1}


DOCUMENT = {
    "sizes": [20, 7, 5],
    "batch": 9,
    "device": "a GPU",
    "environment": {"driver": "1", "toolkit": "2"},
    "torch": {"version": "3", "matmul_precision": "highest"},
    "cpu": "a CPU",
    "cpu_cores": 4,
    "written_at": "2026-01-02T03:04:05+00:00",
    "command": "python benchmarks/network.py",
    "rows": [
        {
            "name": "cpu_loop",
            "label": "Loop",
            "note": "g++",
            "pass_us": times(12345.6),
            "max_error": 1e-7,
            "accuracy": 1.0,
        },
        {
            "name": "tuned",
            "label": "Tuned",
            "kernels": 4.0,
            "kernels_us": times(8.0),
            "times_eager": {"median": 2.5, "low": 2.4, "high": 2.6},
            "pass_us": times(9.0),
            "with_transfers_us": times(60.0),
            "max_error": 2e-7,
            "accuracy": 0.9453,
            "absent": ["linear m=9,n=5,k=7"],
        },
        {
            "name": "torch_eager",
            "label": "PyTorch, eager",
            "kernels": 10.0,
            "kernels_us": times(20.0),
            "times_eager": {"median": 1.0, "low": 1.0, "high": 1.0},
            "pass_us": times(90.0),
            "with_transfers_us": times(160.0),
            "max_error": 2e-7,
            "accuracy": 0.9453,
        },
    ],
}


def test_the_table_holds_what_was_measured_and_says_how(benchmark_module, tmp_path):
    made = benchmark_module("network_table.table")
    text = made.table(DOCUMENT)
    assert "| Loop |  |  |  | 12,346 ± 1.2e+03 | none needed | 1.0e-07 | 1.0000 |" in text
    assert "| Tuned | 4 | 8 ± 0.8 | 2.50 [2.40, 2.60] | 9 ± 0.9 | 60 ± 6 | 2.0e-07 | 0.9453 |" in text
    assert "(by a pass): eager 2.50 (10.00)." in text
    assert "no such variant for linear m=9,n=5,k=7" in text
    for fact in ("20-7-5", "a GPU", "driver 1", "PyTorch 3", "2026-01-02", "python benchmarks/network.py"):
        assert fact in text
    docs = tmp_path / "network.md"
    docs.write_text(f"before\n{made.BEGIN}old\n{made.END}\nafter\n")
    made.put_into(docs, DOCUMENT)
    assert docs.read_text() == f"before\n{made.BEGIN}{text}\n{made.END}\nafter\n"
