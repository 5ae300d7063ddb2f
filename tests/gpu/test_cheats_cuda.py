"""Kernels on a GPU that can tell verified launches from timed ones are refused, and honest ones are not."""

from __future__ import annotations

import pytest
from contracts.cheats import CHEATS, EVERYWHERE, HONEST, configuration

from tilewright.tuner.loop.finals import finals
from tilewright.tuner.outcome import Outcome

pytestmark = pytest.mark.gpu

PROBLEM = CHEATS.problem({"m": 64, "n": 65536})
"""A block has one thread: a launch takes milliseconds, so that what is left out shows."""


@pytest.fixture(scope="module")
def bench(device):
    bench = device.bench(CHEATS, PROBLEM, seed=7)
    yield bench
    bench.close()


@pytest.mark.parametrize("ranking_l2", ["warm", "cold"])
@pytest.mark.parametrize("variant", EVERYWHERE)
def test_a_cheat_is_refused(bench, variant, ranking_l2):
    honest = bench.evaluate(configuration(HONEST), ranking_l2)
    assert honest.outcome is Outcome.MEASURED, honest.log
    found = bench.evaluate(configuration(variant), ranking_l2)
    if (variant, found.outcome) == ("only_poisoned", Outcome.MEASURED):  # a launch by itself finds poison each time
        assert found.time_ms > 0.5 * honest.time_ms
    else:
        assert found.outcome is Outcome.WRONG_RESULT, (found.time_ms, honest.time_ms)


@pytest.mark.parametrize("variant", EVERYWHERE)
def test_a_cheat_that_had_a_trial_does_not_win_the_finals(bench, variant):
    standing = finals(bench, [configuration(variant), configuration(HONEST)], "warm")
    if variant == "only_poisoned":
        honest = next(one for one in standing.finalists if one.configuration == configuration(HONEST))
        assert standing.finalists[0].time_ms > 0.5 * honest.time_ms
    else:
        assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
