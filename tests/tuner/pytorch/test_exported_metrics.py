"""What operators do, in numbers: `status()` and the metrics of a registry."""

import pytest

torch = pytest.importorskip("torch")

from prometheus_client import CollectorRegistry  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch import plans  # noqa: E402
from tilewright.tuner.pytorch.metrics import export_metrics  # noqa: E402
from tilewright.tuner.pytorch.plans import Decision  # noqa: E402
from tilewright.tuner.runtime.memory.room import ROOM  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.torch.FallbackWarning")


@pytest.fixture
def sampled(monkeypatch):
    """A function that returns a metric's value, 0 where it has none."""
    monkeypatch.setattr(plans.PROCESS, "tallies", {})
    monkeypatch.setattr(plans.PROCESS, "calls_off", plans.Counter())
    registry = CollectorRegistry()
    export_metrics(registry)
    return lambda name, **labels: registry.get_sample_value(name, labels) or 0


def calls(sampled, runs, reason=""):
    return sampled("tilewright_operator_calls_total", operator="gemm", runs=runs, reason=reason)


def test_calls_of_ours_are_counted(sampled):
    for _ in range(3):
        tw.gemm(torch.ones(6, 5), torch.ones(5, 4))
    (one,) = [one for one in tw.status() if one.operator == "gemm"]
    assert (one.calls_ours, one.calls_pytorch, one.fallback) == (3, 0, "")
    assert calls(sampled, "ours") == 3


def test_calls_of_pytorchs_are_counted_by_their_reason(sampled, untuned):
    a, b = torch.ones(6, 5), torch.ones(5, 4)
    tw.gemm(a, b)
    tw.gemm(a, b)
    tw.gemm(a.to(torch.int32), b.to(torch.int32))
    tw.off()
    tw.gemm(a, b)
    tw.on()
    assert calls(sampled, "ours") == 0
    assert calls(sampled, "pytorch", "untuned") == 2
    assert calls(sampled, "pytorch", "failed") == 1
    assert calls(sampled, "pytorch", "off") == 1


def test_the_gain_is_that_of_the_calls_so_far(sampled):
    for size, ours_ms, pytorch_ms in ((7, 1.0, 3.0), (8, 2.0, None)):
        tw.gemm(torch.ones(size, 5), torch.ones(5, 4))
        tally = list(plans.PROCESS.tallies.values())[-1]
        tally.ours, tally.ours_ms, tally.pytorch_ms = 10, ours_ms, pytorch_ms
    assert [one.gained_ms for one in tw.status()[-2:]] == [20.0, None]
    assert sampled("tilewright_operator_gained_seconds", operator="gemm") == pytest.approx(0.02)


def test_no_gain_is_told_where_pytorchs_time_is_not_known():
    assert Decision("gemm", "", "cuda:0", is_ours=True, reason="", calls_ours=3, ours_ms=1.0).gained_ms is None


def test_scratch_memory_is_told_by_gpu(sampled):
    before = ROOM.taken_bytes(5)
    ROOM.take(5, 1 << 20)
    try:
        assert sampled("tilewright_scratch_bytes", device="cuda:5") == before + (1 << 20)
    finally:
        ROOM.give_back(5, 1 << 20)


def test_a_registry_has_the_metrics_once(sampled):
    registry = CollectorRegistry()
    export_metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        export_metrics(registry)
