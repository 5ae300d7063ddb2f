"""Kernels that can tell verified launches from timed ones are refused, and honest ones are not."""

import pytest
from contracts.cheats import CHEATS, EVERYWHERE, HONEST, ON_HOSTS, PROBLEM, configuration
from waiting import PATIENCE_S

from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.outcome import Outcome


@pytest.fixture(scope="module")
def bench(shared_cache):
    device = CpuDevice(cache=shared_cache / "host", run_timeout_s=PATIENCE_S)
    bench = device.bench(CHEATS, PROBLEM, seed=7)
    yield bench
    bench.close()
    device.close()


def test_there_are_more_than_a_dozen():
    assert len({*EVERYWHERE, *ON_HOSTS}) >= 12


@pytest.mark.parametrize("ranking_l2", ["warm", "cold"])
@pytest.mark.parametrize("variant", sorted([*EVERYWHERE, *ON_HOSTS]))
def test_a_cheat_is_refused_or_its_time_is_the_honest_one(bench, variant, ranking_l2):
    honest = bench.evaluate(configuration(HONEST), ranking_l2)
    assert honest.outcome is Outcome.MEASURED, honest.log
    found = bench.evaluate(configuration(variant), ranking_l2)
    has_no_effect = variant in {"own_clock", "only_poisoned"}
    if has_no_effect and found.outcome is Outcome.MEASURED:  # each of these launches found a poisoned output
        assert found.time_ms > 0.5 * honest.time_ms
    else:
        assert found.outcome in {Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED}, (found.time_ms, honest.time_ms)


def test_inputs_change_between_the_rounds_of_finals_and_every_contestant_is_right(bench):
    standing = finals(bench, [configuration(HONEST)], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
    assert standing.dropped == ()


@pytest.mark.parametrize("variant", EVERYWHERE)
def test_a_cheat_that_had_a_trial_falls_in_the_finals(bench, variant):
    standing = finals(bench, [configuration(variant), configuration(HONEST)], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
    assert [dropped.configuration for dropped in standing.dropped] == [configuration(variant)]
