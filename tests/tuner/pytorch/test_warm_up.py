"""`tw.warm`: operators are decided when it returns, and by rank 0 for all ranks."""

from __future__ import annotations

import pytest
from timed_calls import time_calls

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tests.tuner.pytorch.ranks import two_ranks  # noqa: E402
from tests.tuner.pytorch.warm_rank import knowing  # noqa: E402
from tilewright.tuner.turns.contest import MOST_CALLS, Contests, Verdict  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.pytorch.plans.FallbackWarning")


def test_all_ranks_have_the_configurations_and_decisions_of_the_first(tmp_path):
    for slow, (first, second) in two_ranks("warm_rank", tmp_path, "pytorch", "ours").items():
        assert first["before"] != second["before"]
        assert {name: first[name] for name in first if name != "before"} == {
            name: second[name] for name in second if name != "before"
        }
        assert first["is_ours"] is (slow == "pytorch")
        assert "calls each" in first["reason"]
        assert first["configuration"] == "tiled TILE_WIDTH=8"


def test_one_process_is_decided_too_and_calls_no_more_than_that_takes(tmp_path, monkeypatch):
    clock, linear, calls = time_calls(monkeypatch, torch), torch.nn.functional.linear, []

    def library(*given, **named):
        clock.spend(3.0)
        return linear(*given, **named)

    monkeypatch.setattr(torch.nn.functional, "linear", library)
    tw.use(knowing(tmp_path, 8, 0.5))
    x, w = torch.randn(6, 8), torch.randn(24, 8)
    with torch.no_grad():
        [decision] = tw.warm(lambda: calls.append(tw.linear(x, w)))
    assert decision.is_ours
    assert "calls each" in decision.reason
    assert len(calls) < MOST_CALLS


def test_what_rank_0_did_not_decide_stays_as_the_records_say():
    """Its decisions are of its own device; what another rank has begun on another range is over."""
    first, other, ranges = Contests(), Contests(), ["decided", "open", "unknown there"]
    for what in ranges[:2]:
        first.of(("linear", "cuda:0", what), prefers_ours=True)
    first.of(("linear", "cuda:3", "elsewhere"), prefers_ours=True)
    first.of(("linear", "cuda:0", "decided"), prefers_ours=True).verdict = Verdict(is_ours=False, calls=4)
    for what in ranges:
        other.of(("linear", "cuda:1", what), prefers_ours=what != "open")
    other.adopt(first.verdicts("cuda:0"), "cuda:1")
    assert [other.verdict(("linear", "cuda:1", what)).is_ours for what in ranges] == [False, True, True]
    assert not other.are_open()
    assert other.verdict(("linear", "cuda:1", "elsewhere")) is None
