"""The network's benchmark, as far as it runs without a GPU: the steps, the trace, the table."""

from __future__ import annotations

import numpy as np
import pytest
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.network.network import Network


@pytest.fixture
def network():
    return Network.random((20, 7, 5), seed=1)


@EXHAUSTIVE
def test_steps_are_tuned_on_a_real_device(benchmark_module, network):
    device = CpuDevice()
    try:
        steps = benchmark_module("network_table.tuning").tuned_steps(device, network, 9, Budget(trials=1))
    finally:
        device.close()
    assert [step.name for step in steps][:4] == ["tiled", "wpt_strided", "wpt", "tuned"]  # the others need PTX
    assert all(len(step.pinned) == 3 for step in steps[:4])


def test_results_are_held_against_float64(benchmark_module, network):
    bench = benchmark_module("network")
    x = np.random.default_rng(1).standard_normal((9, 20)).astype(np.float32)
    labels, exact = network.forward(x).argmax(axis=1), bench.reference(network, x)
    right, wrong = (bench.checked(network.forward(x), exact, labels + more) for more in (0, 1))
    assert (right["accuracy"], wrong["accuracy"]) == (1, 0)
    assert right["max_error"] < 1e-6


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


def times(median):
    return {"median": median, "low": median * 0.9, "high": median * 1.1, "spread": 0.1}


DOCUMENT = {
    "sizes": [20, 7, 5],
    "batch": 9,
    "device": "a GPU",
    "environment": {"driver": "1", "toolkit": "2"},
    "torch": {"version": "3", "matmul_precision": "highest"},
    "written_at": "2026-01-02T03:04:05+00:00",
    "command": "python benchmarks/network.py",
    "rows": [
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
    assert "| Tuned | 4 | 8 ± 0.8 | 2.50 [2.40, 2.60] | 9 ± 0.9 | 60 ± 6 | 2.0e-07 | 0.9453 |" in text
    assert "(by a pass): eager 2.50 (10.00)." in text
    assert "no such variant for linear m=9,n=5,k=7" in text
    for fact in ("20-7-5", "a GPU", "driver 1", "PyTorch 3", "2026-01-02", "python benchmarks/network.py"):
        assert fact in text
    page, begin = tmp_path / "network.md", "<!-- network: made here -->\n"
    page.write_text(f"before\n{begin}old\n<!-- /network -->\nafter\n")
    benchmark_module("documents.file").put_into(page, "network", text + "\n")
    assert page.read_text() == f"before\n{begin}{text}\n<!-- /network -->\nafter\n"
